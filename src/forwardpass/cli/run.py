"""`forwardpass run PROMPT`: one prompt, one streamed answer."""

from __future__ import annotations

import gc
import sys
from time import perf_counter

from ..errors import ParameterError
from .output import answer_text, print_json, status_line, write
from .shared_options import SAMPLING_NAMES


def run(prompt, model, dtype, kv_dtype, threads, system, raw, explain, json, **sampling) -> int:
    text = read_prompt(prompt)
    if raw and system is not None:
        raise ParameterError("--system needs the chat template, which --raw leaves out: give one of them.")
    loaded = load(model, dtype, kv_dtype, threads)
    with loaded:
        if "text2text" in loaded.tasks or (explain and "generate" not in loaded.tasks):
            # An encoder-decoder answers to a text as it is, and what only reads texts is explained with one.
            if system is not None:
                raise ParameterError("--system needs a chat template, and this model, which is no decoder, has none")
            raw = True
        params = given(sampling)
        request = text if raw else messages(system, text)
        if explain:
            return _explained(loaded, request, params, json)
        if json or (sampling["num_return_sequences"] or 1) > 1:
            return _whole(loaded, request, params, json)
        return stream_out(lambda: loaded.stream(text, **params) if raw else loaded.chat(request, stream=True, **params))


def load(model: str, dtype: str, kv_dtype: str, threads: int | None):
    """The model, with progress while it is fetched or packed for the first time."""
    import forwardpass

    from .progress import Progress

    with Progress() as progress:
        loaded = forwardpass.load(model, dtype=dtype, kv_dtype=kv_dtype, threads=threads, progress=progress)
    gc.enable()
    return loaded


def given(sampling: dict) -> dict:
    """Only what the user said: everything else comes from the model's generation_config."""
    return {name: sampling[name] for name in SAMPLING_NAMES if sampling.get(name) is not None}


def messages(system: str | None, text: str) -> list[dict]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def read_prompt(prompt: str) -> str:
    """The prompt itself, or all of stdin for "-". ParameterError if it is not UTF-8."""
    try:
        if prompt == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        # Bytes that are not UTF-8 arrive in sys.argv as lone surrogates.
        prompt.encode("utf-8")
    except UnicodeError as error:
        raise ParameterError(f"the prompt must be UTF-8 text: {error}.") from None
    return prompt


def stream_out(begin) -> int:
    """The pieces of begin() to stdout as they come, then a line of figures on stderr."""
    start = perf_counter()
    first, stream = None, begin()
    try:
        for piece in stream:
            first = first or perf_counter() - start
            write(answer_text(piece.text))
    except KeyboardInterrupt:
        stream.close()
        write("\n")
        raise
    seconds = perf_counter() - start
    write("\n")
    done = stream.completion
    print(figures(done, first, seconds), file=sys.stderr)
    return 0


def figures(done, first: float | None, seconds: float) -> str:
    """The line after a streamed answer. first: seconds until the first piece, None = none came."""
    if done.score is not None:  # of beams: all pieces come at the end, but their first tokens were there long before
        first = done.timings["first_token"]
    return status_line(len(done.prompt_token_ids), len(done.token_ids), first or seconds, seconds)


def _whole(model, request, params: dict, json: bool) -> int:
    start = perf_counter()
    done = model.generate(request, **params) if isinstance(request, str) else model.chat(request, **params)
    seconds = perf_counter() - start
    choices = done if isinstance(done, list) else [done]
    if json:
        records = [as_record(choice) for choice in choices]
        print_json(
            {**records[0], "seconds": seconds} if len(records) == 1 else {"choices": records, "seconds": seconds}
        )
        return 0
    for number, choice in enumerate(choices, start=1):
        score = "" if choice.score is None else f"({choice.score:.3f}) "
        write(f"[{number}] {score}{answer_text(choice.text)}\n")
    tokens = sum(len(choice.token_ids) for choice in choices)
    line = f"{len(choices[0].prompt_token_ids)} prompt tokens, {tokens} new tokens in {len(choices)} answers"
    print(f"{line}, {tokens / seconds:.1f} tokens/s", file=sys.stderr)
    return 0


def _explained(model, request, params: dict, json: bool) -> int:
    report = model.explain(request, **params)
    done = report.completion  # None where the text was only read
    if json:
        print_json({**(as_record(done) if done else {}), "explain": report.to_dict()})
        return 0
    if done:
        write(answer_text(done.text) + "\n")
    print(report, file=sys.stderr)
    return 0


def as_record(completion) -> dict:
    """A Completion as JSON takes it."""
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(completion.prompt_token_ids),
        "new_tokens": len(completion.token_ids),
        "token_ids": list(completion.token_ids),
        "timings": completion.timings,
    } | ({} if completion.score is None else {"score": completion.score})
