"""Types are described once, with all types inside, and data decoded as msgspec does."""

from __future__ import annotations

import gc
import time
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from envbuilder.core import decoding, types
from envbuilder.core.decoding import Spot
from envbuilder.core.errors import InvalidError


def descriptions(kind: type[Struct]) -> list[int]:
    """Return the identities of what msgspec keeps as the description of a Struct type."""
    return [id(r) for r in gc.get_referents(kind) if type(r).__name__ == "StructInfo"]


@pytest.fixture
def kinds() -> tuple[type[Struct], type[Struct]]:
    """Return two new types, of which the second has fields of the first."""
    inner = msgspec.defstruct("inner", [("number", int)])
    return inner, msgspec.defstruct("Outer", [("inner", dict[str, inner])])  # type: ignore[valid-type]


def test_a_type_is_described_under_the_lock_and_only_once(
    kinds: tuple[type[Struct], type[Struct]], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = []

    class Lock:
        def __enter__(self) -> None:
            described.append(descriptions(kinds[1]))

        def __exit__(self, *_: object) -> None:
            described.append(descriptions(kinds[1]))

    monkeypatch.setattr(decoding, "_describing", Lock())
    for _ in range(3):
        decoding.convert({"inner": {}}, kinds[1])
    assert [len(d) for d in described] == [0, 1]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"inner": 1}', None),
        (b"{", None),
        (b'"\xff"', str),
        (b"1", 5),
        ('"text"', Annotated[str, msgspec.Meta(max_length=2)]),
    ],
)
def test_errors_are_those_of_msgspec(
    content: bytes | str, kind: Any, kinds: tuple[type[Struct], type[Struct]]
) -> None:
    kind = kind or kinds[1]
    with pytest.raises(Exception) as ours:
        decoding.from_json(content, kind)
    with pytest.raises(Exception) as theirs:
        msgspec.json.decode(content, type=kind)
    assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))


def test_a_key_that_is_twice_among_many_is_found_at_once() -> None:
    many = b",".join(b'"k%d":1' % number for number in range(30_000))
    began = time.process_time()
    with pytest.raises(ValueError, match="key 'k29999' appears twice"):
        decoding.strict_json(b"{" + many + b',"k29999":2}')
    assert time.process_time() - began < 1  # comparing each with each took 9 s


@pytest.mark.parametrize("text", [r'["\ud800"]', r'{"\udC00": 1}'])
def test_half_a_character_is_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="half of an escaped character"):
        decoding.strict_json(text.encode())


@pytest.mark.parametrize(
    ("text", "value"), [(r'"\ud83d\ude00"', "\U0001f600"), (r'"\\ud800"', r"\ud800")]
)
def test_whole_characters_may_be_escaped(text: str, value: str) -> None:
    assert decoding.strict_json(text.encode()) == value


def test_the_number_of_values_is_limited() -> None:
    decoding.strict_json(b"[" + b"0," * 900_000 + b"0]")
    with pytest.raises(ValueError, match="more than 1000000 values"):
        decoding.strict_json(b"[" + b"[]," * 3_000_000 + b"[]]")


Short = Annotated[str, Meta(max_length=3)]
Lower = Annotated[str, Meta(pattern=r"^[a-z]\Z")]


class Leaf(Struct, forbid_unknown_fields=True):
    names: tuple[Short, ...] = ()
    count: int = 0


class Tree(Struct, forbid_unknown_fields=True):
    leaves: dict[Lower, Leaf] = {}
    either: tuple[Short | Leaf, ...] = ()
    maybe: dict[Lower, int] | None = None
    secrets: dict[Lower, Short] = {}


def located(data: Any) -> Spot:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(data, Tree)
    stated = str(raised.value).partition(" - at ")[2]
    return decoding.locate(stated, Tree, data)


@pytest.mark.parametrize(
    ("data", "spot"),
    [
        ({"leaves": {"a": {}, "b": {"count": "x"}}}, Spot(("leaves", "b", "count"), int, "x")),
        ({"leaves": {"a": {"names": ["b", 5]}}}, Spot(("leaves", "a", "names", "1"), Short, 5)),
        ({"either": ["a", {"count": "x"}]}, Spot(("either", "1", "count"), int, "x")),
        ({"maybe": {"a": 1, "b": "x"}}, Spot(("maybe", "b"), int, None)),
        ({"maybe": {"a": 1, "B C": 1}}, Spot(("maybe",), Lower, None, "B C")),
        ({"secrets": {"a": "a password"}}, Spot(("secrets", "a"), Short, None)),
        ({"leaves": 3}, Spot(("leaves",), dict[Lower, Leaf], 3)),
    ],
)
def test_keys_of_mappings_are_found_and_their_values_are_not_repeated(
    data: dict[str, Any], spot: Spot
) -> None:
    assert located(data) == spot


def test_without_data_the_path_has_no_free_keys() -> None:
    spot = decoding.locate("`$.leaves[...].names[0]`", Tree, None)
    assert spot == Spot(("leaves", "names", "0"), Short, None)
    assert decoding.locate("`key` in `$.leaves`", Tree, None).key is None
    assert decoding.locate("`$.gone[3].x`", Tree, {}).kind is None


class Inner(Struct, forbid_unknown_fields=True):
    device: Literal["cpu", "cuda"]
    count: int = 1


class Outer(Struct, forbid_unknown_fields=True, kw_only=True):
    description: types.Sentence
    requirements: tuple[types.Requirement, ...] = ()
    environment: dict[types.Variable, types.VariableValue] = {}
    expects: Inner | None = None
    opt_in: bool = False
    kind: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requirements": "einops"}, "requirements: expected a list, found text"),
        ({"expects": "cpu"}, "expects: expected a mapping of keys, found text"),
        ({"opt_in": 3}, "opt_in: expected true or false, found a whole number"),
        ({"kind": "c"}, "kind: 'c' is not one of a, b"),
        (
            {"expects": {"device": "gpu"}},
            "expects.device: 'gpu' is not one of cpu, cuda",
        ),
        ({"expects": {}}, "expects: the key 'device' is missing"),
        (
            {"requirements": ["einops", "-r requirements.txt"]},
            "(files and URLs are not supported), found '-r requirements.txt'",
        ),
        (
            {"environment": {"A B": "1"}},
            "environment: of a key, expected a variable's name: letters, digits and underscores",
        ),
        ({"environment": {"A": "$x"}}, "environment.A: expected one line without quotes,"),
        ({"description": "a\nb"}, "description: expected one line of text, found 'a\\nb'"),
    ],
)
def test_each_error_is_said_in_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidError) as raised:
        decoding.decode({"description": "x", **changes}, Outer, "mine.yaml")
    assert said in raised.value.message
    assert "`" not in raised.value.message
    assert "regex" not in raised.value.message
