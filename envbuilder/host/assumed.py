"""Select the host to build for: this machine, a recorded one, or one with assumed GPUs.

For builds on machines without the target hardware. Commands that run an environment here
(`verify`, `run`, `shell`) always inspect this machine itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from envbuilder.core.errors import InvalidError
from envbuilder.host import model, probe, tables

GPU_VARIABLE = "ENVBUILDER_TARGET_GPU"
_HINT = (
    f"{GPU_VARIABLE} is none, nvidia:sm=8.9,driver=580.65, amd:gfx=gfx1100 or intel:id=e20b (a"
    " PCI id); sm and driver may be left out, and then are unknown."
)
_VALUES = {
    "sm": re.compile(r"[0-9]{1,2}\.[0-9]\Z", re.ASCII),
    "driver": re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}\Z", re.ASCII),
    "gfx": re.compile(r"gfx[0-9a-f]{3,5}\Z", re.ASCII),
    "id": re.compile(r"[0-9a-f]{4}\Z", re.ASCII),
}


def find(
    path: Path | None = None, environ: Mapping[str, str] | None = None, *, full: bool = False
) -> model.Host:
    """Return the host in `path` (written by `detect --json`) or this one, with assumed GPUs if any.

    The host's notes list the assumptions. `full`: this one is probed in full. Raise `InvalidError`
    if the file or variable is invalid.
    """
    environ = os.environ if environ is None else environ
    host = model.read(path) if path else probe.host(full=full)
    if path:
        host = _noted(host, f"this is the host of {path}, not this machine")
    text = environ.get(GPU_VARIABLE, "").strip()
    if text:
        return _noted(_assume(host, text), f"assumed: {GPU_VARIABLE}={text}")
    return host


def is_assumed(path: Path | None, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a host other than this machine was specified."""
    environ = os.environ if environ is None else environ
    return path is not None or bool(environ.get(GPU_VARIABLE, "").strip())


def _noted(found: model.Host, note: str) -> model.Host:
    return msgspec.structs.replace(found, notes=(note, *found.notes))


def _assume(host: model.Host, text: str) -> model.Host:
    vendor, _, rest = text.lower().partition(":")
    values = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    keys, assume = _ASSUMABLE.get(vendor, ((), lambda values: None))
    for key, value in values.items():
        if key not in keys or not _VALUES[key].match(value):
            raise InvalidError(f"{GPU_VARIABLE}: {text!r}: {key}={value} is not understood", _HINT)
    changes = assume(values)
    if changes is None:
        raise InvalidError(f"{GPU_VARIABLE}: {text!r} is not understood", _HINT)
    return msgspec.structs.replace(host, peers=(), **changes)


def _nvidia(values: Mapping[str, str]) -> dict[str, Any]:
    gpu = model.Gpu(
        vendor="nvidia",
        name="NVIDIA GPU",
        state="usable",
        detail=model.ASSUMED,
        driver_version=values.get("driver"),
        sm=values.get("sm"),
    )
    return {"gpus": (gpu,)}


def _amd(values: Mapping[str, str]) -> dict[str, Any] | None:
    if "gfx" not in values:
        return None
    gpu = model.Gpu(
        vendor="amd",
        name="AMD GPU",
        state="usable",
        detail=model.ASSUMED,
        family=values["gfx"],
        kernel_driver="amdgpu, assumed",
        render_node_readable=True,
    )
    return {"gpus": (gpu,)}


def _intel(values: Mapping[str, str]) -> dict[str, Any] | None:
    device_id = values.get("id")
    if device_id is None:
        return None
    row = tables.intel_gpu(device_id)
    name = f"Intel {row.name or row.family}" if row else "Intel GPU"
    gpu = model.Gpu(
        vendor="intel",
        name=f"{name} ({device_id.upper()})",
        state="usable" if row else "unknown",
        detail=model.ASSUMED if row else f"PCI id {device_id} is not in envbuilder's table",
        device_id=device_id,
        family=row.family if row else None,
        support=row.support if row else None,
        kernel_driver="xe or i915, assumed",
        render_node_readable=True,
    )
    # Assume the libraries along with the card, which would not work without them.
    return {"gpus": (gpu,), "level_zero": True}


_Assume = Callable[[Mapping[str, str]], dict[str, Any] | None]
_ASSUMABLE: dict[str, tuple[tuple[str, ...], _Assume]] = {
    "none": ((), lambda values: {"gpus": ()}),
    "nvidia": (("sm", "driver"), _nvidia),
    "amd": (("gfx",), _amd),
    "intel": (("id",), _intel),
}
"""Vendor → its keys, and a function from their values to a host's changes; None: one is missing."""
