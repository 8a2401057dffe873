"""What a page shows of a report is bounded, and can be shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.verify.page import bounds

MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[1mb\u202e", f"a{MARK}[1mb{MARK}"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("x" * 700, "x" * 600 + " … (100 more characters)"),
        ([1, 2.5, True, None], [1, 2.5, True, None]),
        (list(range(500)), list(range(400))),
        ({"a": ("\x00",)}, {"a": [MARK]}),
        ({"k" * 100: 1}, {"k" * 80 + " … (20 more characters)": 1}),
    ],
)
def test_what_becomes_of_a_value(value: Any, shown: Any) -> None:
    assert bounds.displayable(value) == shown


def test_a_traceback_keeps_its_end() -> None:
    shown = bounds.displayable({"traceback": "first\n" + "x" * 8000 + "\nlast"})["traceback"]
    assert shown.startswith("… (11 characters before)\n")
    assert shown.endswith("\nlast")
    assert bounds.displayable({"traceback": "T" * 700}) == {"traceback": "T" * 700}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(json_values)
def test_nothing_that_cannot_be_shown_stays(value: Any) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [t for k, v in value.items() for t in (k, *texts(v))]
        if isinstance(value, list):
            return [t for v in value for t in texts(v)]
        return [value] if isinstance(value, str) else []

    for text in texts(bounds.displayable(value)):
        text.encode()
        assert all(c.isprintable() or c in "\n\t" for c in text)
