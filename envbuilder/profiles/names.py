"""Suggest a profile for a name that none has: makers, GPUs and builds that users know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuilder.core.errors import SHOWN

_MAKERS = {
    "cuda": ("nvidia", "geforce", "rtx", "gtx", "tesla", r"cu\d+", "cuda.*"),
    "cuda-legacy": ("pascal", "volta", r"p100", r"v100", r"gtx-?10\d\d", "cu126"),
    "rocm": ("amd", "radeon", "hip", "instinct", r"gfx\w+", r"mi\d+x?", "rocm.*"),
    "xpu": ("intel", "arc", "battlemage", "alchemist", "sycl", "oneapi", "xpu.*"),
    "mps": ("apple", "apple-silicon", r"m\d+", "mac", "macos", "metal", "darwin"),
    "cpu": ("none", "cpu-only", "x86", "x86-64", "arm64", "aarch64"),
    "zendnn": ("epyc", "zen", "ryzen", "zentorch"),
    **dict.fromkeys(("jax-cpu", "jax-cuda"), ("jax", "flax")),
    **dict.fromkeys(("tensorflow-cpu", "tensorflow-cuda"), ("tf", "tensorflow", "keras")),
    "zendnn-tensorflow": ("zentf",),
}
"""Profile → expressions for other names of its hardware."""
_GPUS = "Did you mean cuda (NVIDIA), rocm (AMD), xpu (Intel) or mps (Apple)? "


def suggestion(name: str, available: Sequence[str]) -> str:
    """Return the hint for an unknown profile: the one that is meant, if that shows, and all."""
    known = f"Known profiles: {', '.join(available)}. See `envbuilder profiles`."
    return f"{_meant(name, available)}{known}"


def _meant(name: str, available: Sequence[str]) -> str:
    from difflib import get_close_matches

    plain = name[:SHOWN].lower().replace("_", "-").replace(" ", "-")
    if plain in {"gpu", "gpus", "any-gpu"}:
        return _GPUS
    by_maker = [
        profile
        for profile, others in _MAKERS.items()
        if profile in available and re.fullmatch("|".join(others), plain)
    ]
    meant = by_maker or get_close_matches(plain, available, n=1)
    if meant:
        return f"Did you mean {' or '.join(map(repr, meant))}? "
    return ""
