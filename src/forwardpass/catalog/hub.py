"""`hf:org/name`, `hf:org/name@revision` and `hf:org/name/FILE.gguf` (with all parts of a split file), through
huggingface_hub, imported only here."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import FetchError, ParameterError
from ..weights.gguf_parts import part_names

WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt"]

_FORM = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)((?:/[\w .+-]+)+\.gguf)?(?:@([\w./-]+))?", re.ASCII)


def parse(text: str) -> tuple[str, str | None, str | None]:
    """(repository, file or None, revision or None). ParameterError for any other form."""
    match = _FORM.fullmatch(text)
    if match is None or ".." in text:
        raise ParameterError(
            f"a hub model is hf:org/name, hf:org/name/FILE.gguf or either with @revision, got {text!r}."
        )
    return match[1], match[2][1:] if match[2] else None, match[3]


def fetch(text: str) -> Path:
    """The local folder or GGUF file of a hub model. Files come into huggingface_hub's own cache."""
    repository, file, revision = parse(text)
    try:
        import huggingface_hub
    except ImportError:
        raise FetchError(
            f"{text} needs the package huggingface_hub: pip install 'forwardpass[hub]'. "
            "A folder or GGUF file on this machine needs nothing."
        ) from None
    try:
        if file is not None:
            parts = {name: huggingface_hub.hf_hub_download(repository, name, revision=revision)
                     for name in part_names(file)}
            return Path(parts[file])
        # "*/*": only the repository's top level; exports for other programs lie in its folders.
        folder = Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=WANTED, ignore_patterns=["*/*"]
            )
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    # The hub's errors share no base class across versions: HTTP, offline and file system errors all end here.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FetchError(
            f"could not fetch {text} from the hub: {reason}. Check the name and the network (a private model also "
            "needs a login), or pass a local folder or GGUF file."
        ) from error
    if not (folder / "config.json").is_file():
        raise FetchError(f"{text} has no config.json. If it holds GGUF files, name one: hf:{repository}/FILE.gguf")
    return folder
