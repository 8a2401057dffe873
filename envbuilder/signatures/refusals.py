"""The reasons for which a signature is not accepted; each has an error of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import SignatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    _T = TypeVar("_T")
    _U = TypeVar("_U")


class UnsignedError(SignatureError):
    """There is no signature at all."""


class UnknownKeyError(SignatureError):
    """None of the trusted keys made the signature."""


class ChangedPayloadError(SignatureError):
    """A trusted key is named, but its signature does not match the signed content."""


class WrongTypeError(SignatureError):
    """A trusted key signed it, but the statement is of another type, or names another builder."""


class OtherSubjectError(SignatureError):
    """A trusted key signed it, but it is about other bytes than those in hand."""


_CLOSEST = (OtherSubjectError, WrongTypeError, ChangedPayloadError, UnknownKeyError, UnsignedError)


def first_accepted(candidates: Iterable[_T], accept: Callable[[_T], _U], nothing: str) -> _U:
    """Return what `accept` returns for the first candidate that it accepts.

    If it accepts none, raise the error that came closest to acceptance; `UnsignedError` with the
    message `nothing` if there are no candidates.
    """
    errors: list[SignatureError] = []
    for candidate in candidates:
        try:
            return accept(candidate)
        except SignatureError as error:
            errors.append(error)
    if not errors:
        raise UnsignedError(nothing, "Sign it: envbuilder sign --key KEY …")
    raise min(errors, key=lambda e: _CLOSEST.index(type(e)))
