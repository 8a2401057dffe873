"""Select the host to build for: this machine, a recorded one, or one with assumed GPUs.

For builds on machines without the target hardware. Commands that run an environment here
(`verify`, `run`, `shell`) always inspect this machine itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from envbuilder.core.errors import InvalidError
from envbuilder.host import accelerators, model, probe

GPU_VARIABLE = "ENVBUILDER_TARGET_GPU"


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
    if text.lower() == "none":
        return msgspec.structs.replace(host, gpus=())
    values = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    row = accelerators.of_vendor(vendor)
    for key, value in values.items():
        pattern = row.assumable.get(key) if row else None
        if pattern is None or not re.fullmatch(pattern, value, re.ASCII):
            raise InvalidError(
                f"{GPU_VARIABLE}: {text!r}: {key}={value} is not understood", _hint()
            )
    changes = row.assume(values) if row else None
    if changes is None:
        raise InvalidError(f"{GPU_VARIABLE}: {text!r} is not understood", _hint())
    return msgspec.structs.replace(host, **changes)


def _hint() -> str:
    examples = [row.example for row in accelerators.of_gpus() if row.example]
    stated = " or ".join(examples)
    return f"{GPU_VARIABLE} is none, or like {stated}; what is left out is unknown."
