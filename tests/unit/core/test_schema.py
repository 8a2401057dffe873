"""The place of a validation error, as exact as the data allow."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from envbuilder.core import schema, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import Spot

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
    return schema.locate(stated, Tree, data)


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
    spot = schema.locate("`$.leaves[...].names[0]`", Tree, None)
    assert spot == Spot(("leaves", "names", "0"), Short, None)
    assert schema.locate("`key` in `$.leaves`", Tree, None).key is None
    assert schema.locate("`$.gone[3].x`", Tree, {}).kind is None


@given(st.text(max_size=60), st.recursive(st.none() | st.text(), st.lists, max_leaves=4))
def test_no_path_and_no_data_is_too_odd(stated: str, data: Any) -> None:
    schema.locate(stated, Tree, data)


class Inner(Struct, forbid_unknown_fields=True):
    device: types.Accelerator
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
            "expects.device: 'gpu' is not one of cpu, cuda, rocm, xpu, mps",
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
        schema.decode({"description": "x", **changes}, Outer, "mine.yaml")
    assert said in raised.value.message
    assert "`" not in raised.value.message
    assert "regex" not in raised.value.message


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(Outer.__struct_fields__), anything))
def test_no_error_names_types_of_python_or_patterns(data: dict[str, Any]) -> None:
    with nullcontext() if _is_valid(data) else pytest.raises(InvalidError) as raised:
        schema.decode(data, Outer, "mine.yaml")
    message = raised.value.message if raised else ""
    assert not [sign for sign in ("regex", "`str`", "\n") if sign in message]


def _is_valid(data: dict[str, Any]) -> bool:
    try:
        msgspec.convert(data, Outer)
    except msgspec.ValidationError:
        return False
    return True
