"""A stand-in for a loaded model, so that the command line is tested without one. `load` is forwardpass.load's.

It answers with the words of WORDS; a text's vector is made of its length. A prompt may ask for special behaviour:
"error", "bug", "warn", "interrupt", "hang".
"""

import warnings
from types import SimpleNamespace

from forwardpass.errors import ParameterError

WORDS = ["Light", " is", " scattered", ".\n", "Caf\u00e9 \u732b\x1b[31m"]


class FakeStream:
    """Pieces of an answer; afterwards `completion` holds the whole."""

    def __init__(self, text: str, words: list[str], wait=None):
        self.text, self.words, self.wait = text, words, wait
        self.closed = False
        self.completion = None
        self._pieces = self._run()

    def _run(self):
        for number, word in enumerate(self.words):
            if number == 1 and "interrupt" in self.text:
                raise KeyboardInterrupt
            if number == 1 and "hang" in self.text:
                self.wait()
            yield SimpleNamespace(text=word, token_id=number, logprob=None)
        self.completion = completion(self.text, self.words)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._pieces)

    def close(self):
        self.closed = True
        self._pieces.close()


def completion(text: str, words: list[str]) -> SimpleNamespace:
    return SimpleNamespace(
        text="".join(words),
        token_ids=list(range(len(words))),
        prompt_token_ids=list(text.encode()),
        finish_reason="stop",
        logprobs=None,
        timings={"decode": 0.25},
        score=None,
    )


class FakeReport:
    def __init__(self, done):
        self.completion = done

    def to_dict(self):
        return {"bottleneck": "memory"}

    def __str__(self):
        return "decode 0.25 s, bound by memory"


def load(model, progress=None, **options):
    from forwardpass import catalog

    return FakeModel(catalog.resolve(model, progress), **options)


TASKS = {"reader": ("embed",), "pair": ("text2text",)}
"""What is in the path of a model that does not chat: its tasks."""


class FakeModel:
    def __init__(self, path, wait=None, **options):
        self.path, self.options, self.wait = path, options, wait
        self.calls, self.streams, self.closed = [], [], False
        self.tasks = next((tasks for name, tasks in TASKS.items() if name in str(path)), ("generate", "chat", "embed"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def _begin(self, kind, request, params):
        request = request if isinstance(request, str) else [dict(message) for message in request]
        self.calls.append((kind, request, params))
        text = request if isinstance(request, str) else request[-1]["content"]
        if "error" in text:
            raise ParameterError("temperature must be in [0, 100],\ngot \x1b[31mnan")
        if "warn" in text:
            warnings.warn("the oldest turns\nwere dropped", stacklevel=1)
        if "bug" in text:
            raise IndexError("list index out of range")
        return text

    def stream(self, prompt, **params):
        stream = FakeStream(self._begin("stream", prompt, params), WORDS, self.wait)
        self.streams.append(stream)
        return stream

    def generate(self, prompt, **params):
        done = completion(self._begin("generate", prompt, params), WORDS)
        count = params.get("num_return_sequences", 1)
        if params.get("num_beams", 1) > 1:
            done.score = -0.25
        return done if count == 1 else [done] * count

    def chat(self, messages, stream=False, **params):
        text = self._begin("chat", messages, params)
        if not stream:
            return completion(text, WORDS)
        self.streams.append(FakeStream(text, WORDS, self.wait))
        return self.streams[-1]

    def complete(self, prefix, suffix=None, **params):
        self.calls.append(("complete", [prefix, suffix], params))
        if not params.get("stream"):
            return completion(prefix, WORDS)
        self.streams.append(FakeStream(prefix, WORDS, self.wait))
        return self.streams[-1]

    def _answers(self, kind, text, params):
        """In capital letters; what has 12 in it has lost it."""
        self._texts(kind, text, params)
        made = completion(text, [text.upper()])
        made.score, made.lost = -0.5, ("12",) if "12" in text else ()
        return made

    def translate(self, text, **params):
        done = self._answers("translate", text, params)
        return iter([done]) if params.get("stream") else [done] * params.get("num_return_sequences", 1)

    def summarize(self, text, **params):
        return self._answers("summarize", text, params)

    def _texts(self, kind, texts, params):
        texts = [texts] if isinstance(texts, str) else texts
        self.calls.append((kind, list(texts), params))
        for text in texts:
            if "error" in text:
                raise ParameterError("this text is wrong")
        return texts

    @property
    def settings(self):
        return SimpleNamespace(prompts={"query": "ask: "})

    def embed(self, texts, **params):
        import numpy as np  # not above: tests look at what `run` imports

        lengths = [len(text) for text in self._texts("embed", texts, params)]
        return np.array([[n, 2 * n, 0.5, 1, 2, 3, 4, 5] for n in lengths], np.float32)

    def similarity(self, vectors, others):
        """The nearer in length, the more alike."""
        return 0.0 - abs(vectors.reshape(-1, vectors.shape[-1])[:, :1] - others[:, 0])

    def classify(self, texts, **params):
        texts = self._texts("classify", texts, params)
        return [[("long", 0.75), ("short\n", 0.25)][: params.get("top_k")] for _ in texts]

    def rerank(self, query, documents, **params):
        self._texts("rerank", documents, {"query": query, **params})
        return sorted(((i, float(len(text))) for i, text in enumerate(documents)), key=lambda one: -one[1])

    def token_classify(self, texts, **params):
        from forwardpass.contracts import Entity

        return [[Entity("PER", 0.5, 0, 3, text[:3])] if text[0].isupper() else []
                for text in self._texts("token_classify", texts, params)]

    def fill_mask(self, texts, **params):
        from forwardpass.contracts import Candidate

        texts = self._texts("fill_mask", texts, params)
        guess = Candidate("city", 0.9, 7, "a city")
        return [[[guess]] * text.count("[MASK]") for text in texts]

    def zero_shot(self, texts, labels, **params):
        texts = self._texts("zero_shot", texts, {"labels": labels, **params})
        return [[(label, 0.5) for label in labels] for _ in texts]

    def _images(self, kind, images, params, of):
        """of(length of the name) is the answer, except to names with "bad" in them; an image without a name has 4."""
        many = isinstance(images, list)
        on_error = params.pop("on_error", None)
        names = [getattr(image, "name", image) for image in (images if many else [images])]
        self.calls.append((kind, names, {name: value for name, value in params.items() if name != "stream"}))

        def each():
            for number, name in enumerate(names):
                if "bad" in name:
                    on_error(number, ParameterError(f"{name}: expected an\nimage"))
                yield None if "bad" in name else of(len(name))

        return each() if many else next(each())

    def classify_image(self, images, **params):
        return self._images("classify_image", images, params,
                            lambda n: [("boot\n", n / 100), ("bag", 0.25)][: params.get("top_k", 5)])

    def embed_image(self, images, **params):
        import numpy as np

        return self._images("embed_image", images, params, lambda n: np.array([n, 2 * n, 1], np.float32))

    def zero_shot_image(self, images, labels, **params):
        params["labels"] = labels
        return self._images("zero_shot_image", images, params, lambda n: [(label, 0.5) for label in labels])

    def explain(self, request, **params):
        text = self._begin("explain", request, params)
        return FakeReport(completion(text, WORDS) if self.tasks != TASKS["reader"] else None)
