"""Errors: what they say wherever they are shown."""

from __future__ import annotations

import pytest

from envbuilder.core.errors import ChangedFileError, Hint, with_context, wrapped


def test_context_is_part_of_whatever_shows_an_error() -> None:
    error = ChangedFileError("wrong hash", "Try again.", actual="00")
    same = with_context(error, "https://me:secret@host/x.whl", Hint("See", ("lock",)))
    assert same is error, "its class, cause and traceback are those that callers know"
    assert str(error) == error.message == "https://…@host/x.whl: wrong hash"
    assert error.hint == "Try again.\nSee: envbuilder lock"
    assert with_context(error).hints == error.hints


@pytest.mark.parametrize(
    "pasted",
    [
        "build_from_source: [antlr4-python3-runtime, flash-attn, pycocotools]",
        'overrides: {markdown-it-py: "markdown-it-py>=2.2, <4"}',
        'python: "3.10 or something"',
        "`envbuilder run -- python train.py --epochs 3`",
    ],
)
def test_what_is_to_be_pasted_is_never_broken(pasted: str) -> None:
    text = f"To have some of these packages built, sealed off, write {pasted} into the file"
    assert any(pasted in line for line in wrapped(text, 60, "  ", "    ").splitlines())
