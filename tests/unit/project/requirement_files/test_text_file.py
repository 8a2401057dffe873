"""TOML of a project is read within limits of time."""

from __future__ import annotations

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.project.requirement_files.text_file import parse_toml

MANY = 200_000
"""Parts of a key for which tomllib alone would take an hour."""


@pytest.mark.parametrize(
    "key",
    [
        "a." * MANY,
        "a . " * MANY,
        "\t'a'\t." * MANY,
        '"".' * MANY,
        '"\\"".' * MANY,
        "[" + "a." * MANY,
        "[[ " + "a." * MANY,
        "x = {" + "a." * MANY,
        "x = {b = 1, " + '"a,".b.' * MANY,
    ],
    ids=lambda key: key[:16],
)
def test_a_key_of_many_parts_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidError, match=r"^p\.toml:2: a key of more than 12 parts$"):
        parse_toml(f"first = 1\n{key}", "p.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b.c.d.e.f.g.h.i.j.k.l = 1", None),
        ("x = '" + "a." * 50 + "'", "a." * 50),
        ('x = ["' + "1." * 50 + '"]', ["1." * 50]),
        ("x = 1 # see " + "a." * 50, 1),
    ],
)
def test_other_dots_are_no_keys(text: str, value: object) -> None:
    assert parse_toml(text, "p.toml").get("x") == value


@pytest.mark.parametrize("piece", ['"', ',"', ",'", '\\"', ',"\\"', "a", " ", ",a ", "a.b ", "{a"])
def test_text_of_any_form_is_looked_through_in_one_pass(piece: str) -> None:
    """A second for a mebibyte would be a thousand times what it takes, and quadratic is more."""
    with pytest.raises(InvalidError, match="not valid TOML"):
        parse_toml("x = \x00" + piece * ((1 << 20) // len(piece)), "p.toml")
