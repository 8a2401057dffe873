"""Where the shipped `profiles/`, `templates/` and `data/` are, in a wheel or in a checkout.

An editable install may leave stale copies in site-packages, but `__file__` then points into the
checkout, so the folder beside the package is only used where the packaged one does not exist.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The shipped folder `name` (`profiles` or `templates`)."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def source_dir() -> Path | None:
    """The checkout that this runs from; None for an installed package."""
    project = _PACKAGE.parent / "pyproject.toml"
    ours = project.is_file() and f'name = "{_PACKAGE.name}"' in project.read_text(encoding="utf-8")
    return project.parent if ours else None


def profiles_dir() -> Path:
    """The folder of shipped profiles; `locks/` is below it."""
    return folder("profiles")


def templates_dir() -> Path:
    """The folder of Jinja2 templates."""
    return folder("templates")


def payload_dir() -> Path:
    """The payload's modules, packed by `pack`."""
    return _PACKAGE / "payload"


def mnist_subset_dir() -> Path:
    """The small real subset of MNIST that is shipped for `verify --quick`."""
    return _PACKAGE / "data" / "mnist-subset"
