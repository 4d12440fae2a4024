import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.wire.members import members

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), values), st.booleans())
def test_every_member_is_found_as_it_was_written(value: dict[str, object], spaced: bool) -> None:
    text = json.dumps(value, indent=1 if spaced else None).encode()
    assert {key: json.loads(raw) for key, raw in members(text).items()} == value


def test_depth_and_broken_escapes_do_not_matter() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    found = members(b'{"a":%b,"b":{"x":"\\ud83d, \\"}"} ,"c":-1e5}' % deep)
    assert found == {"a": deep, "b": b'{"x":"\\ud83d, \\"}"}', "c": b"-1e5"}


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{", b'{"a":1', b'{"a":1}}', b'{"a":1} {"b":2}', b"{a:1}"]
)
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        members(text)


@given(st.binary())
def test_any_bytes_give_members_or_a_value_error(text: bytes) -> None:
    try:
        members(b"{" + text + b"}")
    except ValueError:
        pass
