"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from forwardpass.server.schemas_reading import ModelCard, ModelList
from forwardpass.tasks.texts import longest_text

OWNER = "forwardpass"


async def models(call, body: None) -> ModelList:
    """All names that a request may use, aliases among them."""
    return ModelList(data=[_card(call.host, name) for name in (*call.host.models, *call.host.aliases)])


async def model(call, body: None) -> ModelCard:
    """One of them."""
    return _card(call.host, call.request.path_params["id"])


def _card(host, name: str) -> ModelCard:
    model = host.find(name)
    return ModelCard(id=name, created=_created(model), owned_by=OWNER, root=host.aliases.get(name, name),
                     tasks=list(model.tasks), max_model_len=_length(model), dtype=model.dtype)


def _length(model) -> int | UnsetType:
    if "draw" in model.tasks:
        return model.text.max_length if model.text else UNSET
    return reads(model)


def reads(model) -> int:
    """Tokens that a model reads at most: of one that continues them, together with its answer."""
    if model.tokenizer is None or (model.spec.causal and not model.spec.encoder and "generate" in model.tasks):
        return model.spec.max_position_embeddings
    return longest_text(model.spec, model.settings, model.tokenizer)


def _created(model) -> int:
    """When the model's files were written, seconds since 1970; 0 if they are gone."""
    try:
        return int(model.path.stat().st_mtime)
    except OSError:
        return 0
