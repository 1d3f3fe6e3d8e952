"""`forwardpass serve MODEL ...`: the OpenAI API over HTTP."""

from __future__ import annotations


def run(**options) -> int:
    from ..server.run import serve
    from ..server.settings import from_options

    return serve(from_options(options))
