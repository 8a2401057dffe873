"""The CI services that workflows are written for, and what they lend."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from msgspec import Struct

from envbuilder.core import types

Provider = Literal["github", "gitlab"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


class Service(Struct, frozen=True, kw_only=True):
    """What a CI service lends; none of its free runners has an accelerator."""

    runners: Mapping[types.Platform, str]
    """Platform → label of a hosted runner."""
    disk_bytes: int
    """What each of them is sure to have."""
    has_engine: bool
    """Whether jobs on them reach a container engine without further services."""


SERVICES: Mapping[Provider, Service] = MappingProxyType(
    {
        "github": Service(
            runners={
                "linux/amd64": "ubuntu-24.04",
                "linux/arm64": "ubuntu-24.04-arm",
                "macos/arm64": "macos-15",
            },
            disk_bytes=14 * 10**9,
            has_engine=True,
        ),
        "gitlab": Service(
            runners={
                "linux/amd64": "saas-linux-small-amd64",
                "linux/arm64": "saas-linux-small-arm64",
            },
            disk_bytes=30 * 10**9,
            has_engine=False,
        ),
    }
)
