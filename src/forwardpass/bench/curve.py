"""The latency-throughput curve: what users wait for, over what the server puts out, a point for each level of load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from forwardpass.errors import ForwardpassError, ParameterError

PANELS = (("ttft_ms", "first token"), ("itl_ms", "between tokens"))
SHOWN = "p95"
SIZE = (10, 4.2)


def library():
    """matplotlib, which only pictures need, with the backend that draws without a screen."""
    try:
        import matplotlib
    except ImportError:
        raise ForwardpassError("a picture needs matplotlib, which is not installed: "
                               "pip install 'forwardpass[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    return pyplot, ticker


def draw(file: str | Path, engines: Mapping[str, Sequence[Mapping]], title: str) -> None:
    """Write a PNG. engines: a name -> its levels' summaries, in the order in which they are to be joined. Levels
    without a single answer have no point. ParameterError if the file cannot be written."""
    pyplot, ticker = library()
    figure = pyplot.figure(figsize=SIZE, layout="constrained")
    try:
        for axis, (name, what) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            for engine, levels in engines.items():
                points = [(level["output_tok_s"] or level["requests_s"], level[name][SHOWN], _label(level["load"]))
                          for level in levels if level[name]]
                line = axis.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", label=engine)[0]
                for x, y, label in points:
                    axis.annotate(label, (x, y), textcoords="offset points", xytext=(4, 5), fontsize=8,
                                  color=line.get_color())
            axis.set(xlabel="output tokens a second", ylabel=f"{what}, {SHOWN} (ms)", yscale="log")
            axis.set_xlim(left=0)
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(ticker.NullFormatter())
            axis.grid(True, alpha=0.25)
            if len(engines) > 1:
                axis.legend(fontsize=8)
        figure.suptitle(title, fontsize=10)
        figure.savefig(file, format="png", dpi=110)
    except OSError as error:
        raise ParameterError(f"{file}: the picture could not be written: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _label(load: Mapping) -> str:
    return str(load["concurrency"]) if "concurrency" in load else f"{load['rate']:g}/s"
