"""Lists in YAML are changed, and nothing else: comments, order, quotes and blank lines stay."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envbuilder.core import strict_yaml, yaml_edit

LIST = ("requirements",)
CASES = [
    # An empty file, one with nothing but comments, and a missing key.
    ("", "requirements:\n  - new\n"),
    ("# mine\n", "# mine\nrequirements:\n  - new\n"),
    ("# mine", "# mine\nrequirements:\n  - new\n"),
    ("---\n", "---\nrequirements:\n  - new\n"),
    ("profile: cpu\n", "profile: cpu\nrequirements:\n  - new\n"),
    ("profile: cpu", "profile: cpu\nrequirements:\n  - new\n"),
    ("x: [a]\n  # - b\n\n# end\n", "x: [a]\n  # - b\n\n# end\nrequirements:\n  - new\n"),
    ("{}\n", "{requirements: [new]}\n"),
    ("{profile: cpu}\n", "{requirements: [new], profile: cpu}\n"),
    # Brackets.
    ("requirements: []\n", "requirements: [new]\n"),
    ("requirements: [a]  # why\n", "requirements: [a, new]  # why\n"),
    ("requirements: [ a, 'b' ]\nx: 1\n", "requirements: [ a, 'b', new ]\nx: 1\n"),
    ("requirements: [a,]\n", "requirements: [a, new,]\n"),
    (
        "requirements: [\n  a,  # why\n  b,  # and why\n]\n",
        "requirements: [\n  a,  # why\n  b,  # and why\n  new,\n]\n",
    ),
    ("requirements: [\n  a,\n  b  # why\n]\n", "requirements: [\n  a,\n  b,  # why\n  new\n]\n"),
    ("requirements: [a,\n  b]\n", "requirements: [a,\n  b, new]\n"),
    # Dashes.
    ("requirements:\n- a\n- b\n", "requirements:\n- a\n- b\n- new\n"),
    ("requirements:\n    -   a # why", "requirements:\n    -   a # why\n    -   new"),
    (
        "requirements:\n  - a   # why\n\n# of the lab\nprofiles: [cpu]\n",
        "requirements:\n  - a   # why\n  - new\n\n# of the lab\nprofiles: [cpu]\n",
    ),
    ("requirements:\n  - a\n    >=1\nx: 1\n", "requirements:\n  - a\n    >=1\n  - new\nx: 1\n"),
    ("requirements:\n  - >-\n    a\n\nx: 1\n", "requirements:\n  - >-\n    a\n  - new\n\nx: 1\n"),
    ("requirements:\r\n  - a\r\nx: 1\r\n", "requirements:\r\n  - a\r\n  - new\r\nx: 1\r\n"),
    ("\ufeff# ö\nrequirements: [a]\n", "\ufeff# ö\nrequirements: [a, new]\n"),
]
"""A text, and the same with an item more."""


@pytest.mark.parametrize(("before", "after"), CASES)
def test_an_item_is_added_in_the_style_of_the_list(before: str, after: str) -> None:
    assert yaml_edit.append(before, LIST, "new") == after


@pytest.mark.parametrize(("before", "after"), [c for c in CASES if "requirements" in c[0]])
def test_removing_it_gives_the_text_before(before: str, after: str) -> None:
    index = len(strict_yaml.load(after.removeprefix("\ufeff"))["requirements"]) - 1
    assert yaml_edit.remove(after, LIST, index) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "environments:\n  gpu:\n    # the newest\n    python: '3.12'  # so\n\n  other: {}\n",
            (
                "environments:\n  gpu:\n    # the newest\n    python: '3.12'  # so\n"
                "    requirements:\n      - new\n\n  other: {}\n"
            ),
        ),
        (
            "environments:\n  gpu:\n    python: '3.12'\n    # profile: x\n  # gone\n",
            (
                "environments:\n  gpu:\n    python: '3.12'\n    # profile: x\n"
                "    requirements:\n      - new\n  # gone\n"
            ),
        ),
        ("environments:\n  gpu: {}\n", "environments:\n  gpu: {requirements: [new]}\n"),
        (
            "environments: {gpu: {python: '3.12'}}",
            "environments: {gpu: {requirements: [new], python: '3.12'}}",
        ),
        (
            "environments:\n  gpu:\n    requirements: [a]\nrequirements: [b]\n",
            "environments:\n  gpu:\n    requirements: [a, new]\nrequirements: [b]\n",
        ),
    ],
)
def test_a_list_below_other_keys(before: str, after: str) -> None:
    assert yaml_edit.append(before, ("environments", "gpu", "requirements"), "new") == after


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ("requirements: [a, b, c]\n", 0, "requirements: [b, c]\n"),
        ("requirements: [a, b, c]\n", 1, "requirements: [a, c]\n"),
        ("requirements: [a]  # why\n", 0, "requirements: []  # why\n"),
        ("requirements: [a,]\n", 0, "requirements: []\n"),
        ("requirements: [\n  a,  # why\n  b\n]\n", 0, "requirements: [\n  b\n]\n"),
        ("requirements: [\n  # of a\n  a\n]\n", 0, "requirements: [\n  # of a\n]\n"),
        ("requirements:\n# x\n- a # why\n- b\n", 0, "requirements:\n# x\n- b\n"),
        ("requirements:\n- a\n- b # why", 1, "requirements:\n- a"),
        ("requirements: # mine\n  - a\nx: 1\n", 0, "requirements: [] # mine\nx: 1\n"),
        ('"requirements" :\n  - a', 0, '"requirements" : []'),
        ("requirements:\r\n  - a\r\n", 0, "requirements: []\r\n"),
    ],
)
def test_an_item_is_removed_with_its_line(before: str, index: int, after: str) -> None:
    assert yaml_edit.remove(before, LIST, index) == after


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("requirements: [a>=1, b]\n", "a>=2", "requirements: [a>=2, b]\n"),
        ("requirements: [a>=1, b]\n", "a>=1,<2", 'requirements: ["a>=1,<2", b]\n'),
        ("requirements: ['a>=1', b]\n", "a[x]", "requirements: ['a[x]', b]\n"),
        ('requirements:\n- "a"  # why\n', "a>=1,<2", 'requirements:\n- "a>=1,<2"  # why\n'),
        ("requirements:\n- a\n", "a; python_version < '3'", None),
        ('requirements: ["a"]\n', 'a; x == "y"', "requirements: ['a; x == \"y\"']\n"),
        ("requirements: [a]\n", "null", 'requirements: ["null"]\n'),
        ("requirements:\n- a\n", "1", 'requirements:\n- "1"\n'),
    ],
)
def test_an_item_is_replaced_and_keeps_its_quotes(
    before: str, value: str, after: str | None
) -> None:
    expected = after or before.replace("- a", f"- {value}")
    assert yaml_edit.replace(before, LIST, 0, value) == expected


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("requirements:\n-\n  a\n", lambda text: yaml_edit.remove(text, LIST, 0)),
        ("requirements:\n-\n  a\n", lambda text: yaml_edit.append(text, LIST, "new")),
        ("x: 1\n...\n# end\n", lambda text: yaml_edit.append(text + "\n", ("y",), "\x00")),
        ("- a\n", lambda text: yaml_edit.append("{x: 1,\n# }\n}", LIST, "a\nb: [")),
    ],
)
def test_unusual_forms_are_refused_and_never_damaged(text: str, change: Any) -> None:
    with pytest.raises(yaml_edit.EditError):
        change(text)


NAMES = st.from_regex(r"\A[a-z][a-z0-9-]{0,6}[a-z0-9](>=[0-9],<[0-9])?\Z")
COMMENT = st.sampled_from(["", "  # why", " # [x, y]: 'z'", "\t# ü", "  "])
ABOVE = st.sampled_from(["", "\n", "# alone: [\n", "  # indented\n", "\n\n# twice\n"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A file with a list in one of the usual styles, and keys and comments around it."""
    quote = st.sampled_from(["'", '"'])
    items = [f"{q}{name}{q}" for name in draw(st.lists(NAMES, max_size=4)) for q in [draw(quote)]]
    style = draw(st.sampled_from(["dashes", "brackets", "lines"] if items else ["brackets"]))
    indent = draw(st.sampled_from(["", "  ", "     "]))
    if style == "dashes":
        lines = "".join(f"{draw(ABOVE)}{indent}- {item}{draw(COMMENT)}\n" for item in items)
        text = f"requirements:{draw(COMMENT)}\n{lines}"
    elif style == "brackets":
        text = f"requirements: [{', '.join(items)}]{draw(COMMENT)}\n"
    else:
        comma = draw(st.sampled_from(["", ","]))
        ends = [","] * (len(items) - 1) + [comma]
        pairs = zip(items, ends, strict=True)
        text = "".join(f"  {item}{end}{draw(COMMENT)}\n" for item, end in pairs)
        text = f"requirements: [\n{text}{draw(st.sampled_from(['', '  ']))}]{draw(COMMENT)}\n"
    before = draw(st.sampled_from(["", "---\n", "# first\nprofiles: [cpu]\n\n", "x: {y: [z]}\n"]))
    after = draw(st.sampled_from(["", "\n# of the lab\nz: 1\n", "environment: {A: b}\n", "# end"]))
    text = before + draw(ABOVE) + text + after
    return draw(st.sampled_from([text, text.replace("\n", "\r\n"), text.rstrip("\n")]))


def comments(text: str) -> list[str]:
    """The comments of a text, without those that share a line with an item."""
    lines = (line for line in text.splitlines() if line.strip().startswith("#"))
    return [re.sub(r"\s+", " ", line.strip()) for line in lines]


@given(texts(), NAMES)
def test_adding_and_removing_a_name_gives_the_same_text(text: str, name: str) -> None:
    data = strict_yaml.load(text)
    added = yaml_edit.append(text, LIST, name)
    assert strict_yaml.load(added) == {**data, "requirements": [*data["requirements"], name]}
    assert yaml_edit.remove(added, LIST, len(data["requirements"])) == text


@given(texts(), st.integers(min_value=0, max_value=3))
def test_comments_survive_a_removal(text: str, index: int) -> None:
    items = strict_yaml.load(text)["requirements"]
    assume(index < len(items))
    removed = yaml_edit.remove(text, LIST, index)
    assert strict_yaml.load(removed)["requirements"] == items[:index] + items[index + 1 :]
    assert comments(removed) == comments(text)


@given(texts(), st.integers(min_value=0, max_value=3), NAMES)
def test_a_replacement_changes_one_item(text: str, index: int, name: str) -> None:
    items = strict_yaml.load(text)["requirements"]
    assume(index < len(items))
    replaced = yaml_edit.replace(text, LIST, index, name)
    assert len(replaced.splitlines()) == len(text.splitlines())
    assert yaml_edit.replace(replaced, LIST, index, items[index]) == text
