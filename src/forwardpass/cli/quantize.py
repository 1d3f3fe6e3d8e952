"""`forwardpass quantize SOURCE OUT`: pack a model into one file, and tell what that did to its quality."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from ..errors import ParameterError
from .output import print_json, print_table, size
from .progress import Progress, resolve

IMAGES = 8
"""Made images that two models are compared with, at most."""


def run(source, out, dtype, threads, text, tokens, force, json) -> int:
    from ..tasks.model import thread_count
    from ..tasks.quality import measuring_text
    from ..tasks.quantizing import check_target, quantize

    if tokens < 0 or tokens == 1:
        raise ParameterError(f"--tokens must be 0 (no report) or at least 2 (the first is not scored), not {tokens}.")
    path, target = resolve(source), Path(out).expanduser()
    check_target(path, target, force)  # before a minute goes into reading a text
    words = measuring_text(text) if tokens else ""
    start = perf_counter()
    with Progress() as progress:
        nbytes = quantize(path, target, dtype, thread_count(threads), force=force, progress=progress)
    seconds = perf_counter() - start
    report = _quality(path, target, threads, words, tokens) if tokens else None
    if json:
        print_json({"path": str(target), "dtype": dtype, "bytes": nbytes, "seconds": seconds, "quality": report})
        return 0
    rows = [["file", target], ["size", size(nbytes)], ["dtype", dtype], ["packed in", f"{seconds:.1f} s"]]
    if report and "cosine" in report:
        what = (["images", f"{report['compared_images']} made ones compared"] if "compared_images" in report else
                ["text", f"{report['compared_tokens']} tokens compared, in windows of {report['window']}"])
        rows += [
            what,
            ["hidden states against the source's", f"cosine {report['cosine']:.6f}, at least {report['least']:.6f}"],
        ]
    elif report:
        rows += [
            ["text", f"{report['scored_tokens']} tokens scored, in windows of {report['window']}"],
            ["perplexity of the source", f"{report['source']['perplexity']:.4f}"],
            ["perplexity of the file", f"{report['packed']['perplexity']:.4f} ({report['perplexity_change']:+.3%})"],
            ["mean KL divergence", f"{report['packed']['kl']:.6f} nats a token"],
            ["same likeliest token", f"{report['packed']['same_top']:.2%}"],
        ]
    print_table(["what", "value"], rows)
    return 0


def _image_quality(source, target: Path, threads: int | None, count: int) -> dict:
    from ..tasks import quality
    from ..tasks.model import load

    with load(target, threads=threads) as packed, Progress("images") as measuring:
        like = quality.image_likeness(source, packed, count, lambda done, total: measuring("measuring", done, total))
    return {"cosine": like.cosine, "least": like.least, "compared_images": count}


def _quality(path: Path, target: Path, threads: int | None, text: str, tokens: int) -> dict:
    from ..tasks import quality
    from ..tasks.model import load

    with Progress() as progress, load(path, threads=threads, progress=progress) as source:
        if source.spec.patches:
            return _image_quality(source, target, threads, max(1, min(IMAGES, tokens // source.spec.patches.rows(
                *source.spec.patches.image))))
        ids = quality.text_ids(source, text, tokens)
        with load(target, threads=threads) as packed, Progress("tokens") as measuring:
            if not quality.predicts(source):
                like = quality.likeness(source, packed, ids, lambda done, total: measuring("measuring", done, total))
                return {"cosine": like.cosine, "least": like.least, "compared_tokens": len(ids),
                        "window": quality.WINDOW}
            reference, others, scored = quality.compare(
                source, {"packed": packed}, ids, lambda done, total: measuring("measuring", done, total))
    found = others["packed"]
    return {
        "source": {"perplexity": reference.perplexity},
        "packed": {"perplexity": found.perplexity, "kl": found.kl, "same_top": found.same_top},
        "perplexity_change": found.perplexity / reference.perplexity - 1,
        "scored_tokens": scored,
        "window": quality.WINDOW,
    }
