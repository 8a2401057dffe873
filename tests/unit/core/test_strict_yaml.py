"""YAML from outside: plain data of a bounded size, or one sentence with file and line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import parse_yaml, read_text
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from pathlib import Path

# Nine levels of ten: 442 bytes that stand for a thousand million elements.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (BOMB, 1, "anchors and aliases"),
        (f"{BOMB}name: *a8\n", 1, "anchors and aliases"),
        ("a: 1\n? &x b\n: *x\n", 2, "anchors and aliases"),
        ("a: 1\nb: *unknown\n", 2, "anchors and aliases"),
        ("a: &x text\n", 1, "anchors and aliases"),
        ("opt_in: !!bool zz\n", 1, "tags"),
        ('a: 1\nb: !!int ""\n', 2, "tags"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "tags"),
        ("a: !local 1\n", 1, "tags"),
        ("a: ! 1\n", 1, "tags"),
        ("!!map {a: 1}\n", 1, "tags"),
        ("a: !!seq [1]\n", 1, "tags"),
        ("a: !!str 1\n", 1, "tags"),
        ("? !!str a\n: 1\n", 1, "tags"),
        ("%TAG !e! tag:example.org,2026:\n---\na: !e!x 1\n", 1, "%TAG"),
        ("%TAG ! !bar-\n---\na: 1\n", 1, "%TAG"),
        ("a: 1\n<<: {b: 2}\n", 2, "merge key"),
        ("a: 1\na: 2\n", 2, "key 'a' appears twice"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "key 'b' appears twice"),
        ('a: 1\n"a": 2\n', 2, "key 'a' appears twice"),
        ("a: 1\n2: 3\n", 2, "key '2' is not text"),
        ("true: 1\n", 1, "key 'true' is not text"),
        ("a: 1\n[b]: 1\n", 2, "key is not text"),
        ("a: 1\n? {b: 1}\n: 1\n", 2, "key is not text"),
        ("a: 1\n---\nb: 1\n", 2, "one document"),
        ("a: 1\nb: 2026-99-99\n", 2, "'2026-99-99'"),
        ("a: 1\nb: 0x_\n", 2, "'0x_'"),
        (f"a: 1\nb: {'9' * 5000}\n", 2, "'999"),
        ("a: 1\nb: 2001-01-01 25:61:61\n", 2, "'2001-01-01 25:61:61'"),
        (f"a: 1\nb: '{'x' * 70_000}'\n", 2, "longer than"),
        (f"a: 1\nb: 1{':1' * 30_000}\n", 2, "is not a valid int; quote it"),
        (f"a: 0x{'f' * 1_000}\n", 1, "is not a valid int; quote it"),
        (f"a: 1\nb: {'[' * 40}{']' * 40}\n", 2, "nested"),
        (f"a: 1\nb: {'{a: ' * 40}1{'}' * 40}\n", 2, "nested"),
        ("a: 1\nb: x\0y\n", 2, "U+0000"),
        ("a: 1\nb: x\x1b[2Jy\n", 2, "U+001B"),
        ("a: 1\nb: x\x9by\n", 2, "U+009B"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("a: 'x\n", 2, "not valid YAML"),
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


@pytest.mark.parametrize("text", ["- a\n", "text\n", "1\n", "'" + "x" * 5000 + "'\n"])
def test_a_document_is_a_mapping(text: str) -> None:
    with pytest.raises(InvalidError, match="expected a mapping of keys") as caught:
        parse_yaml(text, "envbuilder.yaml")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "---\n", "null\n", "---\n...\n"])
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
        f"{'x' * 60_000}: 1\n",
        f"accelerator: '{'x' * 60_000}'\n",
        f"extends: [{'x' * 60_000}]\n",
        f"extends: '{'x' * 60_000}'\n",
        f"extends: {{a: {'x' * 60_000}}}\n",
        f"python: {{{'x' * 60_000}: 1}}\n",
        f"backends: ['{'x' * 60_000}']\n",
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
@settings(max_examples=150)
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
    assert all(isinstance(key, str) for key in found)
