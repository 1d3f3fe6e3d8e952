"""`forwardpass chat`: a conversation of several turns. Ctrl-C stops the answer, Ctrl-D leaves."""

from __future__ import annotations

import sys
from time import perf_counter

from ..errors import ForwardpassError
from ..tasks.abilities import require
from .output import answer_text, escape, one_line, print_json, write
from .run import as_record, figures, given, load

HELP = """\
/help           this list
/system [TEXT]  set the system message and start again; without TEXT show it
/history        show the conversation so far
/clear          forget the conversation, keep the system message
/retry          drop the last answer and ask again
/exit, /quit    leave (also Ctrl-D)
Ctrl-C stops an answer; what was said of it stays in the conversation."""


def run(model, dtype, kv_dtype, threads, system, json, **sampling) -> int:
    interactive = sys.stdin.isatty() and not json
    if interactive:
        print(f"{escape(str(model))}: /help lists the commands, Ctrl-D leaves.", file=sys.stderr)
    with load(model, dtype, kv_dtype, threads) as loaded:
        require(loaded, "chat")
        return Conversation(loaded, system, given(sampling), json).loop(interactive)


class Conversation:
    """The messages so far and what a line of the user does to them."""

    def __init__(self, model, system: str | None, params: dict, json: bool = False):
        self.model = model
        self.params = params
        self.json = json
        self.messages: list[dict] = []
        self.set_system(system)

    def loop(self, interactive: bool) -> int:
        if interactive:
            import readline  # noqa: F401  gives input() line editing and the history of this session
        while True:
            try:
                line = input("> ") if interactive else _next_line()
            except EOFError:
                if interactive:
                    print(file=sys.stderr)
                return 0
            except KeyboardInterrupt:
                if not interactive:
                    raise
                print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
                continue
            if not self.handle(line.strip()):
                return 0

    def handle(self, line: str) -> bool:
        """One line of the user; False when it ends the conversation."""
        if not line:
            return True
        if not line.startswith("/"):
            self.messages.append({"role": "user", "content": line})
            self.answer()
            return True
        command, _, rest = line.partition(" ")
        if command in ("/exit", "/quit"):
            return False
        action = {
            "/help": lambda: _say(HELP),
            "/system": lambda: self._system(rest.strip()),
            "/history": self._history,
            "/clear": self._clear,
            "/retry": self._retry,
        }.get(command)
        if action is None:
            _say(f"no command {one_line(command)}; /help lists them")
        else:
            action()
        return True

    def answer(self) -> None:
        """Stream an answer to the conversation so far. An error or Ctrl-C costs this turn, not the program."""
        start, first, said = perf_counter(), None, ""
        stream = None
        try:
            stream = self.model.chat(self.messages, stream=True, **self.params)
            for piece in stream:
                first = first or perf_counter() - start
                said += piece.text
                if not self.json:
                    write(answer_text(piece.text))
        except KeyboardInterrupt:
            if stream is not None:
                stream.close()
            if not self.json:
                write("\n")
            _say("(stopped)")
            if said:
                self.messages.append({"role": "assistant", "content": said})
            else:
                self.messages.pop()
            return
        except ForwardpassError as error:
            # The turn that could not be answered must not spoil those that follow.
            self.messages.pop()
            _say(f"error: {one_line(str(error))}")
            return
        seconds = perf_counter() - start
        done = stream.completion
        self.messages.append({"role": "assistant", "content": done.text})
        if self.json:
            print_json({**as_record(done), "seconds": seconds})
            return
        write("\n")
        _say(figures(done, first, seconds))

    def set_system(self, text: str | None) -> None:
        self.messages = [] if text is None else [{"role": "system", "content": text}]

    def _system(self, text: str) -> None:
        if text:
            self.set_system(text)
        current = next((m["content"] for m in self.messages if m["role"] == "system"), None)
        _say("no system message" if current is None else f"system: {escape(current, keep=chr(10))}")

    def _clear(self) -> None:
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def _history(self) -> None:
        for message in self.messages:
            _say(f"{message['role']}: {escape(message['content'], keep=chr(10))}")

    def _retry(self) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self.answer()
        else:
            _say("there is nothing to ask again")


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _say(text: str) -> None:
    """Everything that is not an answer goes to stderr, so that a pipe carries answers only."""
    print(text, file=sys.stderr, flush=True)
