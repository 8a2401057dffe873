"""Markers, once extras and groups are chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker

from envbuilder.core.errors import InvalidError
from envbuilder.project.requirement_files.markers import Chosen, remaining

CHOSEN = Chosen(frozenset({"viz"}), frozenset({"dev"}))


@pytest.mark.parametrize(
    ("marker", "rest"),
    [
        ("", ""),
        ("os_name == 'nt'", 'os_name == "nt"'),
        ("extra == 'viz'", ""),
        ("extra == 'VIZ'", ""),
        ("'viz' == extra", ""),
        ("extra != 'viz'", None),
        ("extra == 'other'", None),
        ("extra != 'other'", ""),
        ("'viz' in extras", ""),
        ("'viz' not in extras", None),
        ("'dev' in dependency_groups", ""),
        ("'viz' in dependency_groups", None),
        ("os_name == 'nt' and extra == 'viz'", 'os_name == "nt"'),
        ("os_name == 'nt' and extra == 'other'", None),
        ("os_name == 'nt' or extra == 'viz'", ""),
        ("os_name == 'nt' or extra == 'other'", 'os_name == "nt"'),
        (
            "(os_name == 'nt' or os_name == 'a') and extra == 'viz'",
            'os_name == "nt" or os_name == "a"',
        ),
        (
            "(os_name == 'nt' or extra == 'other' and os_name == 'b') and os_name not in 'a(b)'",
            'os_name == "nt" and os_name not in "a(b)"',
        ),
        (
            "os_name == 'a' and (os_name == 'b' or os_name == 'c')",
            'os_name == "a" and (os_name == "b" or os_name == "c")',
        ),
    ],
)
def test_what_remains(marker: str, rest: str | None) -> None:
    assert remaining(marker, CHOSEN, "x") == rest


@pytest.mark.parametrize(
    "marker",
    ["os_name", "extra == 'a", f"{'(' * 1500}os_name == 'a'{')' * 1500}", "a b"],
)
def test_invalid_markers(marker: str) -> None:
    with pytest.raises(InvalidError, match="x: not a valid marker: "):
        remaining(marker, CHOSEN, "x")


def test_a_long_marker_is_refused_as_a_whole() -> None:
    clause = "os_name == 'a' or "
    marker = f"{clause * 1200}os_name == 'b'"
    with pytest.raises(InvalidError, match="x: longer than 20000 characters: os_name"):
        remaining(marker, CHOSEN, "x")
    shorter = f"{clause * 800}os_name == 'b'"
    assert str(remaining(shorter, CHOSEN, "x")).endswith('or os_name == "b"')


_ATOMS = st.sampled_from(
    ["extra == 'viz'", "extra == 'other'", "extra != 'viz'", "os_name == 'a'", "os_name == 'b'"]
)
_MARKERS = st.recursive(
    _ATOMS,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
    max_leaves=8,
)


@given(_MARKERS, st.sampled_from(["a", "b", "c"]))
def test_the_rest_is_true_where_the_whole_is(marker: str, os_name: str) -> None:
    rest = remaining(marker, CHOSEN, "x")
    value = Marker(marker).evaluate({"extra": "viz", "os_name": os_name})
    expected = Marker(rest).evaluate({"os_name": os_name}) if rest else rest == ""
    assert value == expected
