"""Errors: what they say wherever they are shown."""

from __future__ import annotations

from envbuilder.core.errors import ChangedFileError, Hint, with_context


def test_context_is_part_of_whatever_shows_an_error() -> None:
    error = ChangedFileError("wrong hash", "Try again.", actual="00")
    same = with_context(error, "https://me:secret@host/x.whl", Hint("See", ("lock",)))
    assert same is error, "its class, cause and traceback are those that callers know"
    assert str(error) == error.message == "https://…@host/x.whl: wrong hash"
    assert error.hint == "Try again.\nSee: envbuilder lock"
    assert with_context(error).hints == error.hints
