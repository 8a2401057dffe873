"""Suggest a profile for a name that none has: makers, GPUs and builds that users know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuilder.core.errors import SHOWN
from envbuilder.host.accelerators import ACCELERATORS, of_gpus

_OTHERS = {
    "cuda-legacy": ("pascal", "volta", r"p100", r"v100", r"gtx-?10\d\d", "cu126"),
    "zendnn": ("epyc", "zen", "ryzen", "zentorch"),
    **dict.fromkeys(("jax-cpu", "jax-cuda"), ("jax", "flax")),
    **dict.fromkeys(("tensorflow-cpu", "tensorflow-cuda"), ("tf", "tensorflow", "keras")),
    "zendnn-tensorflow": ("zentf",),
}
"""Profile → expressions for other names of its hardware, beside those of accelerators."""


def suggestion(name: str, available: Sequence[str]) -> str:
    """Return the hint for an unknown profile: the one that is meant, if that shows, and all."""
    known = f"Known profiles: {', '.join(available)}. See `envbuilder profiles`."
    return f"{_meant(name, available)}{known}"


def _meant(name: str, available: Sequence[str]) -> str:
    from difflib import get_close_matches

    plain = name[:SHOWN].lower().replace("_", "-").replace(" ", "-")
    if plain in {"gpu", "gpus", "any-gpu"}:
        *rows, last = (f"{row.name} ({row.brand})" for row in of_gpus())
        return f"Did you mean {', '.join(rows)} or {last}? "
    aliases = {row.name: row.aliases for row in ACCELERATORS.values()}
    by_maker = [
        profile
        for profile, others in (aliases | _OTHERS).items()
        if profile in available and re.fullmatch("|".join(others), plain)
    ]
    meant = by_maker or get_close_matches(plain, available, n=1)
    if meant:
        return f"Did you mean {' or '.join(map(repr, meant))}? "
    return ""
