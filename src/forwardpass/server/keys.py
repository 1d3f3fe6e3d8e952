"""API keys: read from a file, kept as digests, compared in a time that tells nothing.

One key a line; empty lines and lines that begin with # count for nothing:

    KEY
    NAME KEY
    NAME KEY max_tokens_in_flight=N

KEY is the key itself, or sha256: and the 64 hexadecimal digits of its SHA-256, so that the file need not be a secret.
NAME is what logs call it (default: key-1, key-2, ... by its place among the keys). max_tokens_in_flight is this key's
own limit, in place of the one of --max-tokens-per-key.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import warnings
from dataclasses import dataclass
from hashlib import sha256

from forwardpass.errors import ParameterError

SHORT, LONGEST = 16, 512
"""Characters of a key. What is shorter than the first can be guessed, which is warned of."""
LARGEST_FILE = 1 << 20
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
KEY = re.compile(r"[\x21-\x7e]+")
DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
LIMIT = "max_tokens_in_flight="


@dataclass(frozen=True, slots=True)
class Key:
    """name: for logs and for the order among keys;  digest: SHA-256 of the key;  limit: tokens in flight, None = as for
    all keys."""

    name: str
    digest: bytes
    limit: int | None = None


class Keys:
    def __init__(self, keys: list[Key]):
        self.keys = tuple(keys)

    def find(self, token: bytes) -> Key | None:
        """Whose key this is. It is compared with all of them, so that the time does not say how far it got."""
        digest, found = sha256(token).digest(), None
        for key in self.keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def read_keys(path: str) -> Keys:
    """The keys of a file. ParameterError names the line that is wrong, and never shows what is in it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(LARGEST_FILE + 1).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ParameterError(f"{path}: expected a file with an API key a line, found: {said}") from None
    if len(text) > LARGEST_FILE:
        raise ParameterError(f"{path}: a file of API keys may have {LARGEST_FILE} bytes; this one is longer")
    keys: list[Key] = []
    short: list[str] = []
    plain = False
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            where = f"{path}, line {number}"
            key, size = _key(words, len(keys) + 1, where)
            if size < SHORT:
                short.append(key.name)
            plain = plain or not any(DIGEST.fullmatch(word) for word in words[:2])
            for other in keys:
                if other.name == key.name or other.digest == key.digest:
                    what = "name" if other.name == key.name else "key"
                    raise ParameterError(f"{where}: this {what} stands there already, for {other.name!r}")
            keys.append(key)
    if not keys:
        raise ParameterError(f"{path}: expected at least one API key, found none; write one a line, or leave the "
                             "option out to serve without keys")
    if short:
        warnings.warn(f"{path} has keys of less than {SHORT} characters ({', '.join(short)}), which can be guessed: "
                      "use longer ones", stacklevel=2)
    if plain and mode & stat.S_IROTH:
        warnings.warn(f"{path} holds API keys and everybody on this machine may read it: chmod o-r {path}, or write "
                      "digests (sha256:...) into it", stacklevel=2)
    return Keys(keys)


def _key(words: list[str], number: int, where: str) -> tuple[Key, int]:
    """(a line's key, its length; that of a digest says nothing and is the longest)."""
    *words, last = words
    limit = None
    if words and last.startswith(LIMIT):
        digits = last.removeprefix(LIMIT)
        limit = int(digits) if re.fullmatch("[0-9]{1,15}", digits) else 0
        if limit < 1:
            raise ParameterError(f"{where}: {LIMIT}N must be a whole number of at least 1")
    else:
        words.append(last)
    if len(words) > 2:
        raise ParameterError(f"{where}: expected KEY, NAME KEY or NAME KEY {LIMIT}N, found {len(words)} words")
    name, text = words if len(words) == 2 else (f"key-{number}", words[0])
    if not NAME.fullmatch(name):
        raise ParameterError(f"{where}: a name is up to 64 letters, digits and . _ @ -")
    if text.startswith("sha256:"):
        match = DIGEST.fullmatch(text)
        if match is None:
            raise ParameterError(f"{where}: sha256: must be followed by the 64 hexadecimal digits of a key's SHA-256")
        return Key(name, bytes.fromhex(match[1]), limit), LONGEST
    if not KEY.fullmatch(text) or len(text) > LONGEST:
        raise ParameterError(f"{where}: a key is up to {LONGEST} printable ASCII characters without spaces; this one "
                             "is not")
    return Key(name, sha256(text.encode()).digest(), limit), len(text)
