"""Types are described once, with all types inside, and data decoded as msgspec does."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from msgspec import Struct

from envbuilder.core import decoding

if TYPE_CHECKING:
    from collections.abc import Callable

UNHASHABLE = Annotated[list[int], {"a": "dictionary"}]


def descriptions(kind: type[Struct]) -> list[int]:
    """Return the identities of what msgspec keeps as the description of a Struct type."""
    return [id(r) for r in gc.get_referents(kind) if type(r).__name__ == "StructInfo"]


@pytest.fixture
def kinds() -> tuple[type[Struct], type[Struct]]:
    """Return two new types, of which the second has fields of the first."""
    inner = msgspec.defstruct("inner", [("number", int)])
    return inner, msgspec.defstruct("Outer", [("inner", dict[str, inner])])  # type: ignore[valid-type]


@pytest.mark.parametrize(
    "decode",
    [
        lambda kind: decoding.from_json(b'{"inner": {"a": {"number": 1}}}', kind),
        lambda kind: decoding.convert({"inner": {"a": {"number": 1}}}, kind),
    ],
)
def test_one_description_serves_both_ways(
    decode: Callable[[Any], Any], kinds: tuple[type[Struct], type[Struct]]
) -> None:
    inner, outer = kinds
    assert decode(outer) == outer(inner={"a": inner(number=1)})
    described = descriptions(outer), descriptions(inner)
    assert [len(d) for d in described] == [1, 1]
    decoding.convert({"number": 1}, inner)
    decoding.from_json(b'{"inner": {}}', outer)
    decoding.convert({"inner": {}}, outer)
    msgspec.convert({"inner": {}}, outer)
    assert (descriptions(outer), descriptions(inner)) == described


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


def test_encoding_describes_nothing(kinds: tuple[type[Struct], type[Struct]]) -> None:
    """So threads may encode values of a new type at once."""
    inner, outer = kinds
    value = outer(inner={"a": inner(number=1)})
    msgspec.json.encode(value)
    msgspec.json.encode(value, order="deterministic")
    msgspec.to_builtins(value)
    msgspec.structs.replace(value)
    msgspec.structs.asdict(value)
    msgspec.structs.fields(outer)
    assert (descriptions(outer), descriptions(inner)) == ([], [])


def test_types_that_have_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(UNHASHABLE)
    assert decoding.from_json(b"[1]", UNHASHABLE) == decoding.convert((1,), UNHASHABLE) == [1]
    with pytest.raises(msgspec.ValidationError, match=r"\$\[0\]"):
        decoding.convert(["a"], UNHASHABLE)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"inner": 1}', None),
        (b"{}", None),
        (b"{", None),
        (b"\xff", None),
        (b'"\xff"', str),
        (b"1", str),
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


@pytest.mark.parametrize(("data", "kind"), [({"inner": 1}, None), ({}, None), (1, str), (1, 5)])
def test_errors_of_conversion_are_those_of_msgspec(
    data: Any, kind: Any, kinds: tuple[type[Struct], type[Struct]]
) -> None:
    kind = kind or kinds[1]
    with pytest.raises(Exception) as ours:
        decoding.convert(data, kind)
    with pytest.raises(Exception) as theirs:
        msgspec.convert(data, kind)
    assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))


def test_a_key_that_is_twice_among_many_is_found_at_once() -> None:
    many = b",".join(b'"k%d":1' % number for number in range(30_000))
    began = time.process_time()
    with pytest.raises(ValueError, match="key 'k29999' appears twice"):
        decoding.strict_json(b"{" + many + b',"k29999":2}')
    assert time.process_time() - began < 1  # comparing each with each took 9 s


@pytest.mark.parametrize(
    "text", [r'["\ud800"]', r'{"a": "\uDFFFx"}', r'{"\udC00": 1}', r'[["\udc00\ud800"]]']
)
def test_half_a_character_is_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="half a character"):
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
