"""Stand-ins for tasks/host.py and scheduler/terms.py until these are there."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace

from forwardpass.errors import UnknownModelError

TERMS = ContextVar("TERMS")


class Terms:
    def __init__(self, priority=0, deadline=None, key="", salt="", account=None):
        self.priority, self.deadline, self.key, self.salt, self.account = priority, deadline, key, salt, account
        self.cancelled = False
        self.on_cancel = []

    def __enter__(self):
        self._token = TERMS.set(self)
        return self

    def __exit__(self, *_):
        TERMS.reset(self._token)

    def cancel(self):
        self.cancelled = True
        for call in self.on_cancel:
            call()


def install():
    """Put the module where it will be."""
    module = ModuleType("forwardpass.scheduler.terms")
    module.Terms, module.TERMS = Terms, TERMS
    sys.modules["forwardpass.scheduler.terms"] = module
    limits = ModuleType("forwardpass.scheduler.limits")
    limits.TokensInFlight = TokensInFlight
    sys.modules["forwardpass.scheduler.limits"] = limits


class TokensInFlight:
    def __init__(self, limit, above=None, name=""):
        self.limit, self.above, self.name = limit, above, name


class Host:
    def __init__(self, models, aliases=None):
        self.models = dict(models)
        self.aliases = dict(aliases or {})
        self.account = None
        self.driver = SimpleNamespace(alive=True, restarts=0)

    def find(self, name):
        name = self.aliases.get(name, name)
        if name not in self.models:
            raise UnknownModelError(f"there is no model {name!r}; this server has {', '.join(self.models)}")
        return self.models[name]

    def close(self):
        for model in self.models.values():
            model.close()
