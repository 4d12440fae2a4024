import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import json_values

from legation.wire.jsontext import MOST_TOKENS, members


@given(st.dictionaries(st.text(), json_values, max_size=4), st.booleans())
def test_every_member_is_found_as_it_was_written(value: dict[str, object], spaced: bool) -> None:
    text = json.dumps(value, indent=1 if spaced else None).encode()
    assert {key: json.loads(raw) for key, raw in members(text).items()} == value


def test_depth_and_broken_escapes_do_not_matter() -> None:
    deep = b"[" * 40_000 + b"]" * 40_000
    found = members(b'{"a":%b,"b":{"x":"\\ud83d, \\"}"} ,"c":-1e5}' % deep)
    assert found == {"a": deep, "b": b'{"x":"\\ud83d, \\"}"}', "c": b"-1e5"}


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"null",
            b"[]",
            b"{",
            b'{"a":1',
            b'{"a":1}}',
            b'{"a":1} {"b":2}',
            b"{a:1}",
            b"{1:2}",
            b'{"a"}',
        ),
        *(
            b'{"a":}',
            b'{"a":x}',
            b'{"a":NaN}',
            b'{"a":[1,]}',
            b'{"a":[}]',
            b'{"a":01}',
            b'{"a":"\x01"}',
            b"{,}",
        ),
        *(b'{"a":1,}', b'{"a":1 2}', b'{"a":"\\q"}', b'{"a":"\\u12"}', b'{"a":-}', b'{"a":{"b":1],"c":1}'),
    ],
)
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        members(text)


@given(st.binary())
def test_any_bytes_give_members_or_a_value_error(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        members(b"{" + text + b"}")


@given(st.binary() | st.text('{}[]:,"\\ 1ane-.', max_size=12).map(str.encode))
def test_what_is_taken_is_json(text: bytes) -> None:
    try:
        found = members(b'{"a":%b}' % text)
    except ValueError:
        return
    assert json.loads(b'{"a":%b}' % text).keys() == found.keys()


def test_a_text_of_brackets_alone_is_given_up() -> None:
    half = MOST_TOKENS // 2
    with pytest.raises(ValueError, match="too many"):
        members(b'{"a":%b%b}' % (b"[" * half, b"]" * half))
