"""The place of a validation error, as exact as the data allow."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from envbuilder.core import schema
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
