"""Names and label values that Kubernetes accepts, made from a run and a node."""

from __future__ import annotations

import hashlib
import re

RUN, NODE, PROFILE = "envbuilder/run", "envbuilder/node", "envbuilder/profile"
"""Keys of labels, and of annotations, which hold values of any length."""
NODES = "envbuilder/nodes"
"""Key of the annotation with the nodes that train together, separated by commas."""
TOGETHER = "envbuilder/together"
"""Key of the label of pods that train together."""
LONGEST = 63
"""Characters in a label's value, and in the name of a job, which is a label of its pods."""
_LONGEST_INDEX = 4
"""Characters that the names of an Indexed Job's pods have in addition: a hyphen and a number."""
_SUFFIX = 6
"""Hexadecimal digits that make a shortened name unique."""
_IN_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def job_name(run: str, node: str) -> str:
    """Return the name of the job for a node: readable, and different for every run and node."""
    return _unique(f"envbuilder-{run[-6:]}-", node)


def data_name(run: str) -> str:
    """Return the name of a run's ConfigMap."""
    return f"envbuilder-{run[-6:]}-mnist"


def together_name(run: str, number: int, profile: str) -> str:
    """Return the name of the job in which several nodes train, and of its service."""
    return _unique(f"envbuilder-{run[-6:]}-ddp{number}-", profile, LONGEST - _LONGEST_INDEX)


def label_value(text: str) -> str:
    """Return text as the value of a label: as it is if it may be one, else shortened."""
    return text if _IN_LABEL.fullmatch(text) else _unique("", text)


def _unique(prefix: str, text: str, longest: int = LONGEST) -> str:
    simple = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if simple == text and len(prefix + text) <= longest:
        return prefix + text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_SUFFIX]
    short = simple[: longest - len(prefix) - _SUFFIX - 1].strip("-")
    return f"{prefix}{short}-{digest}" if short else f"{prefix}{digest}"
