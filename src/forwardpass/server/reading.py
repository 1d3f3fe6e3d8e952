"""What the routes that read texts have in common: a task of a model runs in a thread, and what it says of its arguments
is said of the request's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from forwardpass.errors import CapacityError, ParameterError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.server.schemas_reading import Usage
from forwardpass.tasks.notices import collected

_NUMBERED = re.compile(r"\btexts?:? .*?(\d+)\b")
_ARGUMENT = re.compile(r"(\w+)(?:: | must | is )")


@dataclass(frozen=True, slots=True)
class Done:
    """result: of the task;  usage: tokens that it read;  warnings: what is to be known of it, UNSET if nothing is."""

    result: Any
    usage: Usage
    warnings: list[str] | UnsetType


async def run_task(call, body, names: Mapping[str, str], task: Callable[..., Any], *args: Any, **given: Any) -> Done:
    """task(*args, and those of `given` that are not None), in a thread.

    names: the task's arguments -> the request's fields, where they are called otherwise; "texts" are those that errors
    number.
    """
    limit = call.settings.max_tokens_per_request
    if limit is not None:
        call.terms.account = TokensInFlight(limit, call.terms.account, "a request")
    keywords = {name: value for name, value in given.items() if value is not None}
    try:
        with fields(body, names):
            result, notices = await call.run(_collecting, task, args, keywords)
    finally:
        read, written = call.terms.tokens_read, call.terms.tokens_generated
        call.log |= {"prompt_tokens": read} | ({"completion_tokens": written} if written else {})
    return Done(result, Usage(prompt_tokens=read, total_tokens=read), notices or UNSET)


def _collecting(task: Callable[..., Any], args: tuple, keywords: dict[str, Any]) -> tuple[Any, list[str]]:
    with collected() as notices:
        return task(*args, **keywords), notices


@contextmanager
def fields(body, names: Mapping[str, str]) -> Iterator[None]:
    """Errors of arguments leave with the field of the body that they are about as `param`."""
    try:
        yield
    except ParameterError as error:
        error.param = _field(str(error), body, names)
        raise
    except CapacityError as error:
        error.param = names["texts"]
        raise


def _field(message: str, body, names: Mapping[str, str]) -> str | None:
    """Such messages begin with the argument, or with the number of a text."""
    texts = names["texts"]
    begin = message[:80]
    if found := _NUMBERED.match(begin):
        given = getattr(body, texts)
        return f"{texts}[{found[1]}]" if isinstance(given, list) and not isinstance(given[0], int) else texts
    found = _ARGUMENT.match(begin)
    name = found and names.get(found[1], found[1])
    return name if name in body.__struct_fields__ else None
