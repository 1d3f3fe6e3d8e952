"""Options and arguments that stand in several commands, each one object: it means the same everywhere."""

from __future__ import annotations

from .option_kinds import FLAG, FLOAT, INT, INTS, MODEL, TEXT, TEXTS, TRISTATE, Argument, Option

DTYPE = Option("dtype", TEXT, "auto, float32, bfloat16, w8a16, w8a8, int8 (w8a8 in encoders) or int4.", "auto")
KV_DTYPE = Option("kv_dtype", TEXT, "Type of cached keys and values: auto, float32, bfloat16 or int8.", "auto")
THREADS = Option("threads", INT, "Worker threads (default: the CPUs this process may use).")
JSON = Option("json", FLAG, "Print JSON, for programs.")
DEBUG = Option("debug", FLAG, "Show the traceback of an error.")
LOADING = (MODEL, DTYPE, KV_DTYPE, THREADS)

BEAM_SEARCH = (
    Option("num_beams", INT, "Continuations that the search keeps at each step; 1 = greedy (default: the model's)."),
    Option("length_penalty", FLOAT, "Above 0 favours long answers of a beam search, below 0 short ones."),
)
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
    *BEAM_SEARCH,
    Option("num_return_sequences", INT, "Answers to generate."),
)
SAMPLING_NAMES = tuple(option.name for option in SAMPLING)

READING = (MODEL, DTYPE, THREADS)
FILE = Option("file", TEXTS, "A file with a text a line; - is standard input (repeatable).")
TOP = Option("top", INT, "Show only so many, the best.")
MAX_LENGTH = Option("max_length", INT, "Most tokens of a text (default: what the model's files say).")
TRUNCATION = Option("truncation", TEXT, "Where a text that is too long is cut: right or left; error refuses it.")
PAIR_TRUNCATION = Option("pair_truncation", TEXT, "What is cut of a pair: longest_first, only_first or only_second.")
OVERLAP = Option("overlap", INT, "Split what is too long into parts that share so many tokens, instead of cutting it.")
ACTIVATION = Option("activation", TEXT, "How scores are made: softmax, sigmoid or none (default: as the model says).")
TEXT_WORDS = Argument("text", "Texts; - reads one a line from standard input.", many=True)

IMAGES = Argument("image", "Files, folders or patterns; - is an image from standard input.", many=True)
LABEL = Option("label", TEXTS, "A label to choose from (repeatable).")
HYPOTHESIS = Option("hypothesis", TEXT, "A sentence with {} for the label (default 'This example is {}.', of images "
                    "'This is a photo of {}.').")
NEAREST = Option("nearest", TEXT, "Show what is nearest to this text or image, with its similarity to it.")
SAVE = Option("save", TEXT, "Write the vectors into this file (.npy), a row for each.")
POOLING = Option("pooling", TEXT, "mean, cls, max, of texts also last, mean_sqrt_len or weightedmean (default: as in "
                 "the model's files).")
NORMALIZE = Option("normalize", TRISTATE, "Make vectors of length 1 (default: as the model says).")

BEAMS = (
    *BEAM_SEARCH,
    *(option for option in SAMPLING if option.name in ("num_return_sequences", "max_new_tokens")),
)
DOCUMENTS = Argument("text", "Files or texts; - reads standard input.", many=True)

SYSTEM = Option("system", TEXT, "System message of the conversation.")

LOAD = (
    Option("api", TEXT, "What is asked for: chat, completions or embeddings.", "chat"),
    Option("name", TEXT, "The model's name at the server (default: the first that it lists)."),
    Option("concurrency", TEXT, "Closed loop: so many conversations at once (default 1); 1,2,4 sweeps."),
    Option("rate", TEXT, "Open loop: so many conversations a second, whatever the server does; 1,2,4 sweeps."),
    Option("arrivals", TEXT, "How an open loop's conversations come: poisson or constant.", "poisson"),
    Option("requests", INT, "Conversations of each level (default: 4 times the concurrency)."),
    Option("duration", FLOAT, "Seconds of each level instead; what has begun is awaited (open loop: 30)."),
    Option("prompt_tokens", TEXT, "Length of prompts: N, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA.", "128"),
    Option("answer_tokens", TEXT, "Length of answers, in the same way.", "128"),
    Option("shared_prefix", INT, "Tokens that all prompts begin with (chat: the system message).", 0),
    Option("turns", INT, "Turns of a conversation; each has the answers before it in its prompt.", 1),
    Option("think", FLOAT, "Seconds between an answer and the next turn.", 0.0),
    Option("warm_up", INT, "Conversations before each level that are not counted (default 2)."),
    *(option for option in SAMPLING if option.name in ("ignore_eos", "seed")),
    Option("goodput", TEXTS, "ttft:MS, itl:MS, tpot:MS or e2e:MS: count what meets all targets (repeatable)."),
    Option("extra_body", TEXT, "A JSON object of further fields for each request."),
    Option("key_file", TEXT, "A file whose first line is the API key to send."),
    Option("timeout", FLOAT, "Seconds after which a request counts as failed.", 600.0),
    Option("tokenizer", TEXT, "A model whose tokenizer cuts the prompts (default: the server's /tokenize)."),
    Option("pid", INT, "The server's process on this machine: also tell tokens for an hour of CPU time."),
    Option("plot", TEXT, "Draw the latency-throughput curve into this file (.png)."),
    Option("report", TEXT, "Write all figures into this file (.json)."),
    JSON,
    DEBUG,
)
