"""UNet2DConditionModel of diffusers, as Stable Diffusion 1.x and 2.x and their latent consistency models have it."""

from __future__ import annotations

from forwardpass.models.diffusers_config import DiffusersFields
from forwardpass.models.spec import AttentionSpec, LayerSpec, MlpSpec, NormSpec
from forwardpass.models.unet_checks import MAX_BLOCKS, MAX_CHANNELS, MAX_DEPTH, MAX_LEVELS
from forwardpass.models.unet_spec import GroupNormSpec, ResnetSpec, StageSpec, TimeSpec, TransformerSpec, UNetSpec
from forwardpass.models.unet_weights import WORDS, rows, unet_targets
from forwardpass.models.weight_rows import WeightRow

CLASS = "UNet2DConditionModel"
IGNORED: tuple[str, ...] = ()
_DOWN, _UP = ("CrossAttnDownBlock2D", "DownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
_MIDDLE = "UNetMidBlock2DCrossAttn"
_WITHOUT_EFFECT = ("dropout", "upcast_attention", "addition_embed_type_num_heads")
"""upcast_attention: scores and their sums are float32 in any case."""
_KNOWN = {"attention_type": ("default",), "time_embedding_type": ("positional",), "resnet_out_scale_factor": (1,)}


def from_config(f: DiffusersFields) -> UNetSpec:
    """The spec that a config.json describes. Raises ModelFileError or UnsupportedModelError."""
    down = f.names("down_block_types", (_DOWN[0],) * 3 + _DOWN[1:], _DOWN, MAX_LEVELS)
    up = f.names("up_block_types", _UP[1:] + (_UP[0],) * 3, _UP, MAX_LEVELS)
    count = len(down)
    if len(up) != count:
        f.wrong("up_block_types", f"{count} blocks, as many as down_block_types", list(up))
    widths = _widths(f, count)
    sizes = {
        "resnets": f.each("layers_per_block", count, 2, high=MAX_BLOCKS - 1),
        "heads": f.each("num_attention_heads" if f.has("num_attention_heads") else "attention_head_dim", count, 8),
        "depth": f.each("transformer_layers_per_block", count, 1, high=MAX_DEPTH),
    }
    f.get("attention_head_dim")  # where there are both, the other one says nothing
    if f.is_null("norm_num_groups"):
        f.unsupported("norm_num_groups", "a network without group norms")
    norm = GroupNormSpec(f.integer("norm_num_groups", default=32), f.number("norm_eps", default=1e-5, low=1e-13,
                                                                           high=0.1))
    active = f.activation()
    linear = f.flag("use_linear_projection", False)  # or as convolutions of one pixel, which compute the same
    del linear
    time = {"default": "add", "scale_shift": "scale"}.get(f.text("resnet_time_scale_shift", "default"))
    if time is None:
        f.unsupported("resnet_time_scale_shift", "a use of the step other than default and scale_shift")
    context = _context(f, count)
    divisor = f.number("mid_block_scale_factor", default=1.0, low=1e-6, high=1e6)
    padding = f.integer("downsample_padding", default=1, low=0, high=1)

    def stage(block: int, level: int, crosses: bool, inputs: list[tuple[int, int]], resample: str, by: float = 1.0,
              last: bool = True) -> StageSpec:
        """block: whose sizes are used;  inputs: (channels of x, kept ones among them) of each resnet;  crosses, last:
        whether there is attention, and after the last resnet, too."""
        width = widths[block]
        resnets = tuple(ResnetSpec(wide, width, norm, active, time, kept, by) for wide, kept in inputs)
        attention = _transformer(f, norm, width, sizes["heads"][block], sizes["depth"][block]) if crosses else None
        attentions = (attention,) * (len(inputs) - 1) + (attention if last else None,)
        return StageSpec(level, resnets, attentions, resample)

    halve = "halve" if padding else "halve_end"
    stages, now, kept = [], widths[0], [widths[0]]
    for i, kind in enumerate(down):
        inputs = [(now if n == 0 else widths[i], 0) for n in range(sizes["resnets"][i])]
        stages.append(stage(i, i, kind == _DOWN[0], inputs, halve if i + 1 < count else ""))
        now = widths[i]
        kept += [now] * (len(inputs) + (i + 1 < count))
    middle = None
    if not f.is_null("mid_block_type"):
        if f.text("mid_block_type", _MIDDLE) != _MIDDLE:
            f.unsupported("mid_block_type", f"a middle block other than {_MIDDLE}")
        middle = stage(count - 1, count - 1, True, [(now, 0)] * 2, "", divisor, last=False)
    back = []
    for level, kind in zip(reversed(range(count)), up, strict=True):
        inputs = []
        for _ in range(sizes["resnets"][level] + 1):
            skip = kept.pop()
            inputs.append((now + skip, skip))
            now = widths[level]
        back.append(stage(level, level, kind == _UP[0], inputs, "double" if level else ""))
    spec = UNetSpec(
        "unet", f.integer("in_channels", default=4, high=MAX_CHANNELS),
        f.integer("out_channels", default=4, high=MAX_CHANNELS), f.pixels("sample_size", 64), widths[0],
        _time(f, widths[0], active), tuple(stages), middle, tuple(back), norm, active, context,
        (f.integer("conv_in_kernel", default=3, high=7), f.integer("conv_out_kernel", default=3, high=7)),
        f.flag("center_input_sample", False))
    _refuse_lists(f)
    f.close(_KNOWN, _WITHOUT_EFFECT)
    return spec.check()


def weight_rows(spec: UNetSpec) -> tuple[WeightRow, ...]:
    return rows(unet_targets(spec), (WORDS,))


def _widths(f: DiffusersFields, count: int) -> tuple[int, ...]:
    if not f.has("block_out_channels") and count != 4:
        f.wrong("block_out_channels", f"a list of {count}, one for each block", None)
    value = f.get("block_out_channels")
    if value is None:
        return (320, 640, 1280, 1280)
    if not isinstance(value, (list, tuple)):
        f.wrong("block_out_channels", f"a list of {count}, one for each block", value)
    return f.each("block_out_channels", count, 0, high=MAX_CHANNELS)


def _context(f: DiffusersFields, count: int) -> int:
    widths = set(f.each("cross_attention_dim", count, 1280))
    if len(widths) > 1:
        f.unsupported("cross_attention_dim", "a text of several widths")
    return widths.pop()


def _time(f: DiffusersFields, width: int, active: str) -> TimeSpec:
    return TimeSpec(width, f.integer("time_embedding_dim", default=None) or 4 * width, active,
                    f.flag("flip_sin_to_cos", True), f.number("freq_shift", default=0.0, low=0, high=2**16),
                    f.integer("time_cond_proj_dim", default=None) or 0)


def _transformer(f: DiffusersFields, norm: GroupNormSpec, width: int, heads: int, depth: int) -> TransformerSpec:
    """The setting called attention_head_dim is a number of heads."""
    if width % heads:
        f.wrong("attention_head_dim", f"a number of heads that divides a block's {width} channels", heads)
    head = width // heads
    attention = AttentionSpec(heads, heads, head, head**-0.5, out_bias=True, causal=False)
    each = NormSpec("layer", 1e-5, bias=True)
    layer = LayerSpec(each, attention, each, MlpSpec("gated", 4 * width, "gelu_erf", bias=True), cross=attention,
                      cross_norm=each)
    return TransformerSpec(GroupNormSpec(norm.groups, 1e-6), width, (layer,) * depth)


def _refuse_lists(f: DiffusersFields) -> None:
    """only_cross_attention may be a list that is off everywhere."""
    value = f.get("only_cross_attention")
    if value is not None and not (value is False or (isinstance(value, (list, tuple)) and not any(value))):
        f.unsupported("only_cross_attention", "attention to the text in place of attention among pixels")
