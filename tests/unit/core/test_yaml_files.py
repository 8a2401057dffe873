"""YAML from outside: plain data of a bounded size, or one sentence with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from envbuilder.core import yaml_files
from envbuilder.core.decoding import parse_yaml
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import read_text
from envbuilder.profiles import profile as profiles

# Nine levels of ten: 442 bytes that stand for a thousand million elements.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (BOMB, 1, "anchors and aliases"),
        ("opt_in: !!bool zz\n", 1, "tags"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "tags"),
        ("%TAG !e! tag:example.org,2026:\n---\na: !e!x 1\n", 1, "%TAG"),
        ("a: 1\n<<: {b: 2}\n", 2, "merge key"),
        ("a: 1\na: 2\n", 2, "key 'a' appears twice"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "key 'b' appears twice"),
        ("a: 1\n2: 3\n", 2, "key '2' is not text"),
        ("a: 1\n[b]: 1\n", 2, "key is not text"),
        ("a: 1\n---\nb: 1\n", 2, "one document"),
        ("a: 1\nb: 2026-99-99\n", 2, "'2026-99-99'"),
        (f"a: 1\nb: '{'x' * 70_000}'\n", 2, "longer than"),
        (f"a: 1\nb: 1{':1' * 30_000}\n", 2, "is not a valid int (quote it"),
        (f"a: 1\nb: {'[' * 40}{']' * 40}\n", 2, "nested"),
        (f"a: 1\nb: {'{a: ' * 40}1{'}' * 40}\n", 2, "nested"),
        ("a: 1\nb: x\0y\n", 2, "U+0000"),
        ("a: 1\nb: x\x1b[2Jy\n", 2, "U+001B"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
    ],
)
def test_each_refusal_names_file_and_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_yaml(text, "some/envbuilder.yaml")
    assert caught.value.message.startswith(f"some/envbuilder.yaml:{line}: ")
    assert problem in caught.value.message
    assert len(caught.value.message) < 300
    assert "\n" not in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("text", ["- a\n", "'" + "x" * 5000 + "'\n"])
def test_a_document_is_a_mapping(text: str) -> None:
    with pytest.raises(InvalidError, match="expected a mapping of keys") as caught:
        parse_yaml(text, "envbuilder.yaml")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("text", ["", "# a comment\n", "---\n...\n"])
def test_an_empty_document_has_no_keys(text: str) -> None:
    assert parse_yaml(text, "envbuilder.yaml") == {}


def test_what_profiles_are_made_of_is_read_as_before() -> None:
    text = (
        "%YAML 1.1\n---\ntext: plain\nquoted: '1'\nnumber: 0x1F\nfloat: 0.975\nyes: no\n"
        "none: ~\nlist: [a, 2, 3.5]\nnested: {a: {b: c}}\nblock: |\n  one\n  two\nfold: >-\n"
        "  one\n  two\nstar: '*a'\nbang: \"!x\"\n".replace("yes:", "'yes':")
    )
    assert parse_yaml(text, "x.yaml") == {
        "text": "plain",
        "quoted": "1",
        "number": 31,
        "float": 0.975,
        "yes": False,
        "none": None,
        "list": ["a", 2, 3.5],
        "nested": {"a": {"b": "c"}},
        "block": "one\ntwo\n",
        "fold": "one two",
        "star": "*a",
        "bang": "!x",
    }
    assert parse_yaml("\ufeffa: 1\n", "x.yaml") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"a: 1\nb: \xff\n", "not UTF-8"),
        (b"# " + b"x" * (2 << 20), "larger than"),
    ],
)
def test_a_file_is_utf8_text_of_a_bounded_size(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "envbuilder.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=problem) as caught:
        read_text(path)
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 200 + len(str(path))


@pytest.mark.parametrize(
    "text",
    [
        f"name: [{', '.join(['x' * 1000] * 500)}]\n",
        f"name: '{'x' * 60_000}'\n",
        f"python: {{{'x' * 60_000}: 1}}\n",
    ],
)
def test_messages_do_not_grow_with_what_is_in_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InvalidError) as caught:
        profiles.load("mine", [tmp_path])
    assert len(caught.value.message) + len(caught.value.hint) < 500 + len(str(tmp_path))


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), _TREES, max_size=5))
def test_plain_data_survives_a_round(data: dict[str, Any]) -> None:
    # JSON in ASCII is YAML without aliases and tags; libyaml knows no surrogates.
    text = json.dumps(data)
    try:
        reference = yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, UnicodeError):
        return
    assert parse_yaml(text, "x.yaml") == reference


@given(st.text(alphabet="ab1&*!<>{}[]:,?-|%'\"#\n \t~\0\x85\ufeff", max_size=60))
@settings(max_examples=500)
def test_any_text_is_data_or_one_sentence(text: str) -> None:
    try:
        found = parse_yaml(text, "x.yaml")
    except InvalidError as error:
        assert error.message.startswith("x.yaml:")  # noqa: PT017
        assert len(error.message) < 300  # noqa: PT017
        return
    assert isinstance(found, dict)
    for key in found:
        assert isinstance(key, str)


LIST = ("requirements",)
CASES = [
    # An empty file, one with nothing but comments, and a missing key.
    ("", "requirements:\n  - new\n"),
    ("# mine\n", "# mine\nrequirements:\n  - new\n"),
    ("---\n", "---\nrequirements:\n  - new\n"),
    ("profile: cpu\n", "profile: cpu\nrequirements:\n  - new\n"),
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
    assert yaml_files.edit_list(before, LIST, "new") == after


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
                "environments:\n  gpu:\n    python: '3.12'\n    requirements:\n"
                "      - new\n    # profile: x\n  # gone\n"
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
    assert yaml_files.edit_list(before, ("environments", "gpu", "requirements"), "new") == after


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
    assert yaml_files.edit_list(before, LIST, None, index) == after


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
    assert yaml_files.edit_list(before, LIST, value, 0) == expected


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("requirements:\n-\n  a\n", lambda text: yaml_files.edit_list(text, LIST, None, 0)),
        ("requirements:\n-\n  a\n", lambda text: yaml_files.edit_list(text, LIST, "new")),
        ("x: 1\n...\n# end\n", lambda text: yaml_files.edit_list(text + "\n", ("y",), "\x00")),
        ("- a\n", lambda text: yaml_files.edit_list("{x: 1,\n# }\n}", LIST, "a\nb: [")),
    ],
)
def test_unusual_forms_are_refused_and_never_damaged(text: str, change: Any) -> None:
    with pytest.raises(yaml_files.EditError):
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


@given(texts(), NAMES)
def test_adding_and_removing_a_name_gives_the_same_text(text: str, name: str) -> None:
    data = yaml_files.load(text)
    added = yaml_files.edit_list(text, LIST, name)
    assert yaml_files.load(added) == {**data, "requirements": [*data["requirements"], name]}
    again = yaml_files.edit_list(added, LIST, None, len(data["requirements"]))
    assert again.replace(",", "") == text.replace(",", "")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", "day: 2031-01-02\n"),
        ("# ours\na: [1]", "# ours\na: [1]\nday: 2031-01-02\n"),
        ("day: '2022-01-01'  # why\na: 1\n", "day: 2031-01-02  # why\na: 1\n"),
        ("a: {day: 1}\n", "a: {day: 1}\nday: 2031-01-02\n"),
        ("{a: 1, day: 3}\n", "{a: 1, day: 2031-01-02}\n"),
        ("{a: 1}\n", None),
        ("a: |\n  text", None),
        ("day:\n", None),
    ],
)
def test_a_value_is_replaced_or_comes_last(text: str, result: str | None) -> None:
    if result is None:
        with pytest.raises(yaml_files.EditError):
            yaml_files.edit_value(text, "day", "2031-01-02")
    else:
        assert yaml_files.edit_value(text, "day", "2031-01-02") == result
