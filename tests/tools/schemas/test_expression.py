from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.schemas.expression import List, Literal, Map, Name, Type, both, parse, union

_LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "null", "ToolCall", "Parent.field#", "Parent<turn/start>"]).map(
        Name
    ),
    st.one_of(st.text(max_size=5), st.integers(-9, 9), st.booleans()).map(Literal.of),
)
_TYPES: st.SearchStrategy[Type] = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(List),
        inner.map(Map),
        st.lists(inner, min_size=1, max_size=3).map(union),
        st.lists(inner, min_size=1, max_size=3).map(both),
    ),
    max_leaves=8,
)


@given(_TYPES)
def test_what_is_written_is_read_back(type_: Type) -> None:
    assert parse(str(type_)) == type_


@given(st.lists(_TYPES, min_size=1, max_size=4))
def test_the_order_of_members_does_not_matter(members: list[Type]) -> None:
    assert union(members) == union(members[::-1])
    assert both(members) == both(members[::-1])


@pytest.mark.parametrize(
    "text", ["", "a |", "(a", "string | integer", "a  | b", "{ *: a", "The tool's name."]
)
def test_other_text_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)
