"""What can be set about the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """max_body: bytes of a request's body;  max_requests: at the same time."""

    max_body: int = 10 << 20
    max_requests: int = 256
    max_tokens_per_request: int | None = None
