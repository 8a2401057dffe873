"""How people name images on disk: `oci:DIR` for a layout, `FILE.tar` for an archive."""

from __future__ import annotations

from pathlib import Path

_LAYOUT, _ARCHIVE = "oci:", ".tar"


def is_archive(text: str) -> bool:
    """Whether this names an archive."""
    return text.endswith(_ARCHIVE) and not text.startswith(_LAYOUT)


def on_disk(text: str) -> bool:
    """Whether this names an image on disk rather than one of an engine or a registry."""
    return text.startswith(_LAYOUT) or is_archive(text)


def path(text: str) -> Path:
    """The folder or the file."""
    return Path(text.removeprefix(_LAYOUT)).absolute()


def absolute(text: str) -> str:
    """The same name from wherever it is looked at."""
    prefix = _LAYOUT if text.startswith(_LAYOUT) else ""
    return f"{prefix}{path(text)}"
