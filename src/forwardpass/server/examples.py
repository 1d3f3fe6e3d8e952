"""An example or two of each request's body, for the OpenAPI document. Tests send them."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "a question": {"model": "smollm2-135m", "messages": [{"role": "user", "content": "What is a prime number?"}],
                       "max_completion_tokens": 80},
        "streamed": {"model": "smollm2-135m", "messages": [{"role": "system", "content": "Answer in one sentence."},
                                                           {"role": "user", "content": "Why is the sky blue?"}],
                     "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7, "seed": 1},
    },
    "/v1/completions": {
        "a beginning": {"model": "smollm2-135m", "prompt": "The three primary colours are", "max_tokens": 16},
        "a middle": {"model": "qwen2.5-coder-0.5b", "prompt": "def area(r):\n    ", "suffix": "\n\nprint(area(2))\n",
                     "max_tokens": 32, "temperature": 0},
    },
    "/v1/embeddings": {
        "texts": {"model": "minilm-l6", "input": ["A cat sleeps.", "Stocks fell."]},
        "as bytes": {"model": "minilm-l6", "input": "My kitten is tired.", "encoding_format": "base64",
                     "dimensions": 128},
    },
    "/v1/rerank": {
        "a query": {"model": "my-cross-encoder", "query": "How do planes fly?", "top_n": 2, "return_documents": True,
                    "documents": ["Wings push air down.", {"text": "Bread needs yeast."}, "Lift holds them up."]},
    },
    "/v1/classify": {
        "a text": {"model": "my-sentiment-model", "input": "I loved every minute of it."},
        "a pair": {"model": "my-nli-model", "input": [["A man plays a guitar.", "Somebody makes music."]], "top_k": 1},
    },
    "/v1/translate": {
        "a text": {"model": "flan-t5-small", "input": "The house is wonderful.", "source": "en", "target": "de"},
        "several answers": {"model": "flan-t5-small", "input": ["Good morning.", "Good night."], "target": "German",
                            "num_beams": 4, "n": 2},
    },
    "/v1/images/generations": {
        "two boots": {"model": "tiny-dit", "prompt": "Ankle boot", "n": 2, "seed": 1},
        "steps and a format": {"model": "tiny-dit", "prompt": "3", "num_inference_steps": 12, "guidance_scale": 2.5,
                               "output_format": "webp"},
    },
    "/tokenize": {
        "a text": {"model": "smollm2-135m", "prompt": "Hello, world!", "return_token_strs": True},
        "a conversation": {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello!"}]},
    },
    "/detokenize": {"tokens": {"model": "smollm2-135m", "tokens": [19556, 28, 905, 17]}},
}
