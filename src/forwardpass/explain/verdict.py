"""One sentence that names the bottleneck. It follows from measured ratios alone, so tests can feed it any run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a report: an operation of a stage within a phase ("prompt" and "answer", or "text"; of pictures
    "read", "encode", "denoise" and "decode").

    seconds: measured;  bytes, flops: what it had to move and compute;
    read_s, compute_s: the least seconds this machine needs for those bytes and for those operations.
    """

    phase: str
    stage: str
    op: str
    seconds: float
    bytes: int = 0
    flops: int = 0
    read_s: float = 0.0
    compute_s: float = 0.0

    @property
    def limit_s(self) -> float:
        return max(self.read_s, self.compute_s)

    @property
    def of_limit(self) -> float | None:
        """Fraction of the machine's limit that was reached; None where no limit applies."""
        return self.limit_s / self.seconds if self.limit_s and self.seconds else None


NEAR = 0.5
"""From this fraction of a limit on, the limit is the reason."""
OUTSIDE = 0.25
"""From this share of the time on, what is outside the model is the reason."""

_OUTSIDE_STAGES = {
    "preprocess": ("tokenising the prompt", "send shorter prompts, or reuse the token ids"),
    "postprocess": ("choosing tokens", "use fewer filters and penalties, or greedy decoding"),
    "engine": ("bookkeeping between steps", "batch several requests"),
}


_OUTSIDE_DRAWING = {
    "preprocess": ("preparing prompts and images", "ask for all pictures in one call, or begin with smaller images"),
    "engine": ("bookkeeping between steps", "draw several pictures at once"),
}
_DRAWING = {
    "attention": "draw smaller pictures: its work grows with the square of their pixels.",
    "memory": "use fewer bits a weight, or draw several pictures at once, which share one reading of the weights.",
    "arithmetic": "take fewer steps (docs/diffusion.md says how many each scheduler needs), draw smaller pictures, or "
                  "use int8 weights.",
}
_WRITING = {
    "attention": 'shorten the context, or halve its bytes with kv_dtype="int8".',
    "memory": "use fewer bits a weight, or batch requests, which share one reading of the weights.",
    "arithmetic": "use a smaller model, a shorter prompt or int8 weights.",
}
"""What to do about each bound: of pictures, and of texts."""


def verdict(lines: Sequence[Line], drawing: bool = False) -> str:
    """What bounded the run, and what would change it. drawing: the run was of pictures."""
    advice = _DRAWING if drawing else _WRITING
    total = sum(line.seconds for line in lines)
    if total <= 0:
        return "Nothing was measured."
    for stage, (what, then) in (_OUTSIDE_DRAWING if drawing else _OUTSIDE_STAGES).items():
        share = sum(line.seconds for line in lines if line.stage == stage) / total
        if share >= OUTSIDE:
            return f"{what.capitalize()} took {share:.0%} of the time: {then}."
    phase = max({line.phase for line in lines}, key=lambda p: sum(one.seconds for one in lines if one.phase == p))
    inside = [line for line in lines if line.phase == phase and line.limit_s]
    spent = sum(line.seconds for line in inside)
    if not spent:
        return "Nothing was measured inside the model."
    read, compute = sum(line.read_s for line in inside), sum(line.compute_s for line in inside)
    attention = sum(line.seconds for line in inside if line.op == "attention") / spent
    what = f"The {phase} phase ({sum(one.seconds for one in lines if one.phase == phase) / total:.0%} of the time)"
    if attention >= 0.5:
        over = "all pixels of a picture" if drawing else "a long context"
        return f"{what} is bound by attention over {over} ({attention:.0%} of it): {advice['attention']}"
    if read >= compute and read / spent >= NEAR:
        return f"{what} is bound by memory bandwidth ({read / spent:.0%} of this machine's limit): {advice['memory']}"
    if compute > read and compute / spent >= NEAR:
        return f"{what} is bound by arithmetic ({compute / spent:.0%} of this machine's limit): {advice['arithmetic']}"
    least = "memory bandwidth" if read >= compute else "arithmetic"
    return (f"{what} reached {max(read, compute) / spent:.0%} of the limit that {least} sets: "
            "the kernels or a busy machine hold it back, not the model's size.")
