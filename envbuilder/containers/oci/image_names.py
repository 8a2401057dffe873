"""Names of images on disk: `oci:DIR` for a layout, `FILE.tar` for an archive."""

from __future__ import annotations

from pathlib import Path

_LAYOUT, _ARCHIVE = "oci:", ".tar"


def is_archive(text: str) -> bool:
    """Return whether this names an archive."""
    return text.endswith(_ARCHIVE) and not text.startswith(_LAYOUT)


def on_disk(text: str) -> bool:
    """Return whether this names an image on disk, not one of an engine or a registry."""
    return text.startswith(_LAYOUT) or is_archive(text)


def path(text: str) -> Path:
    """Return the path of the folder or file."""
    return Path(text.removeprefix(_LAYOUT)).absolute()


def absolute(text: str) -> str:
    """Return the name with an absolute path."""
    prefix = _LAYOUT if text.startswith(_LAYOUT) else ""
    return f"{prefix}{path(text)}"
