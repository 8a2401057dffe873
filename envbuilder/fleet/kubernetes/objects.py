"""Kubernetes' objects as `kubectl get -o json` prints them, as far as they are needed.

Unknown fields are ignored, since each release adds some; what is used has a type and a limit.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import printable

T = TypeVar("T")
LARGEST = 64 << 20
"""Maximum size of a list in bytes; a pod has about 10,000."""
_LONGEST_PROBLEM = 200

Texts = Annotated[dict[str, str], Meta(max_length=1000)]


class Condition(Struct, frozen=True):
    """One aspect of an object's state."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


Conditions = Annotated[tuple[Condition, ...], Meta(max_length=100)]


def parse(content: bytes, kind: type[T], where: str) -> T:
    """Return a list of objects; raise `InvalidError` if it is none."""
    if len(content) > LARGEST:
        raise InvalidError(f"{where}: larger than {LARGEST >> 20} MiB")
    try:
        decoding.require_few_values(content)
        return decoding.from_json(content, kind)
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), _LONGEST_PROBLEM)
        raise InvalidError(f"{where}: not a list of Kubernetes' objects: {problem}") from error
