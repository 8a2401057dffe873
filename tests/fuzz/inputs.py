"""What the makers and readers of hostile inputs share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path

from envbuilder.core import settings as core_settings
from envbuilder.core.console import PlainProgress

ROOT = Path(__file__).parents[2]

QUIET = PlainProgress(lambda line: None)


def alone(read: Callable[[Path], object]) -> Callable[[Path, Path], object]:
    """What reads a path, and needs no folder to work in."""
    return wraps(read)(lambda path, work: read(path))


def private_settings(work: Path) -> core_settings.Settings:
    return core_settings.Settings(
        project=None,
        config_dir=work / "config",
        cache_dir=work / "cache",
        data_dir=work / "data",
        configuration=core_settings.Configuration(indexes={"debian": "http://mirror"}),
    )


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
