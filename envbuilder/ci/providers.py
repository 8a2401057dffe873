"""The CI services that workflows are written for, and the runners that each of them lends."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.core import types

Provider = Literal["github"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
HOSTED: Mapping[Provider, Mapping[types.Platform, str]] = MappingProxyType(
    {
        "github": {
            "linux/amd64": "ubuntu-24.04",
            "linux/arm64": "ubuntu-24.04-arm",
            "macos/arm64": "macos-15",
        },
    }
)
"""Service → platform → label of a hosted runner, which has no accelerator."""
