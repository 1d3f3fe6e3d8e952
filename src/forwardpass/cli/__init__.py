"""The command line: `main` parses, runs one command and turns what happens into an exit status.

Starting fast is a feature, so a plain, well-formed line is parsed by `fastparse`; help, mistakes and unusual forms
go to typer, which is imported only then. Both read the same table, `options.py`, and tests hold them equal.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run one command. 0 fine, 1 our error (one line on stderr), 2 usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in arguments
    # Until the model is loaded (run.load) nothing is garbage, and looking for some takes a tenth of the start.
    gc.disable()
    try:
        from .fastparse import parse

        parsed = parse(arguments)
        if parsed is None:
            from .typer_app import parse as parse_with_typer

            parsed = parse_with_typer(arguments)
            if isinstance(parsed, int):
                return parsed
        command, values = parsed
        values.pop("debug", None)
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = command.load()(**values) or OK
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        return _report(error, debug)


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning is a sentence for the user; where in the code it was raised helps nobody here."""
    from .output import one_line

    print(f"warning: {one_line(str(message))}", file=sys.stderr)


def _report(error: Exception, debug: bool) -> int:
    from ..errors import ForwardpassError
    from .output import one_line

    if debug:
        import traceback

        traceback.print_exception(error)
    elif isinstance(error, ForwardpassError):
        print(f"error: {one_line(str(error)) or 'no message'}", file=sys.stderr)
    else:
        text = one_line(f"{type(error).__name__}: {error}")
        print(f"error: unexpected {text} (--debug shows where; please report it)", file=sys.stderr)
    return FAILED
