"""Several models for many users: one pool of threads, one KV budget, one thread that steps them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forwardpass.backends.native import NativeBackend
from forwardpass.driver import Driver
from forwardpass.errors import ParameterError, UnknownModelError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.tasks.memory_plan import MemoryPlan, plan_memory
from forwardpass.tasks.model import Model, model_of, open_named, thread_count


@dataclass(frozen=True, slots=True)
class Loading:
    """A model and how to load it; the arguments are those of load(). None: as the host says."""

    model: str | Path
    dtype: str | None = None
    kv_dtype: str | None = None


class Host:
    """models: name -> Model, each of which may be used from any thread;  aliases: other names of theirs;
    account: the tokens in flight of all together;  plan: what the memory is for;  driver: what steps them.

        with Host(["smollm2-135m", "search=all-minilm-l6-v2"]) as host:
            host.find("search").embed("a text")
    """

    def __init__(self, models: Mapping[str, str | Path | Loading] | Sequence[str | Path], *,
                 aliases: Mapping[str, str] | None = None, kv_memory: int | str | None = None,
                 threads: int | None = None, max_tokens_in_flight: int | None = None, dtype: str = "auto",
                 kv_dtype: str = "auto", progress=None):
        """models: by the names that requests give, or a list of models as load() takes them, each perhaps with a name
            before it, "NAME=MODEL". Without one it has the name that it was given by, a file its name without folders.
        aliases: other names, name -> name of a model.
        kv_memory: what the KV caches of all models may come to, bytes or "2GiB"; None = half of what is free.
        threads, dtype, kv_dtype, progress: see load().
        max_tokens_in_flight: see TokensInFlight; None = no limit.

        Raises what load() does, CapacityError where the memory plan cannot work, and ParameterError for names that are
        no names or given twice; nothing stays behind.
        """
        wanted = named(models)
        self.aliases = _checked(aliases or {}, wanted)
        self.account = TokensInFlight(max_tokens_in_flight)
        self.models: dict[str, Model] = {}
        self.driver = Driver()
        backend = NativeBackend(thread_count(threads))
        try:
            found = {name: open_named(one.model, one.dtype or dtype, one.kv_dtype or kv_dtype, lambda: backend,
                                      progress) for name, one in wanted.items()}
            self.plan: MemoryPlan = plan_memory(found, kv_memory)
            budget = SharedBudget(self.plan.kv)
            for name, opened in found.items():
                self.models[name] = model_of(opened, budget)
                self.driver.attach(self.models[name].engine)
        except BaseException:
            self.close()
            raise

    def find(self, name: str) -> Model:
        """The model of this name or alias. Raises UnknownModelError, which lists those there are."""
        model = self.models.get(self.aliases.get(name, name))
        if model is None:
            known = ", ".join([*self.models, *self.aliases])
            raise UnknownModelError(f"there is no model {name[:200]!r} here; there are: {known}")
        return model

    def close(self) -> None:
        """End all requests and free the models' memory. Closing twice is harmless."""
        for model in self.models.values():
            model.close()
        self.driver.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def named(models: Mapping[str, str | Path | Loading] | Sequence[str | Path]) -> dict[str, Loading]:
    """What to load, by name. Raises ParameterError."""
    if isinstance(models, (str, Path)) or not isinstance(models, (Mapping, Sequence)):
        raise ParameterError(f"models must be a list of models, or a mapping of names to them, not {models!r}")
    pairs = list(models.items()) if isinstance(models, Mapping) else [_named(one) for one in models]
    if not pairs:
        raise ParameterError("models: expected at least one model, found none")
    wanted: dict[str, Loading] = {}
    for name, one in pairs:
        if not isinstance(name, str) or not name.strip():
            raise ParameterError(f"a model's name must be a text with something in it, not {name!r}")
        if name in wanted:
            raise ParameterError(f"two models are named {name!r}; give one of them another name: NAME=MODEL")
        wanted[name] = one if isinstance(one, Loading) else Loading(one)
        model = wanted[name].model
        if not isinstance(model, (str, Path)) or not str(model):
            raise ParameterError(f"a model must be a path or a name, not {model!r}")
    return wanted


def _named(model: str | Path) -> tuple[str, str | Path]:
    if not isinstance(model, (str, Path)):
        raise ParameterError(f"a model must be a path or a name, not {model!r}")
    text = str(model)
    name, equals, rest = text.partition("=")
    if equals and isinstance(model, str) and "/" not in name and not Path(text).exists():
        return name, rest
    path = Path(text).expanduser()
    if not path.exists():
        return text, model
    return (path.resolve().name if path.is_dir() else path.stem), model


def _checked(aliases: Mapping[str, str], models: Mapping[str, Loading]) -> dict[str, str]:
    for alias, name in aliases.items():
        if name not in models:
            raise ParameterError(f"the alias {alias!r} stands for {name!r}, which is none of the models: "
                                 f"{', '.join(models)}")
        if alias in models:
            raise ParameterError(f"{alias!r} is the name of a model and cannot be an alias as well")
    return dict(aliases)
