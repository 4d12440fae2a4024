import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.agents.messages import (
    UpdateParams,
    id_key,
    read_block,
    read_cancelled_id,
    read_error,
    read_message,
    read_odd_update,
)

DEEP = b"[" * 20_000 + b"]" * 20_000


def parts(line: bytes) -> tuple[str, bytes, bytes, bytes, bytes] | None:
    found = read_message(line)
    if found is None:
        return None
    return found.method, bytes(found.id), bytes(found.params), bytes(found.result), bytes(found.error)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"id":1,"result":{"a":1}}', ("", b"1", b"", b'{"a":1}', b"")),
        (b'{"id":"x","method":"m","params":[1]}', ("m", b'"x"', b"[1]", b"", b"")),
        (b'{"id": 7 ,"method":"m"}', ("m", b"7", b"", b"", b"")),
        (b'{"method":"m","id":null}', ("m", b"", b"", b"", b"")),
        (b'{"id":1,"result":{},"error":null}', ("", b"1", b"", b"{}", b"")),
        (b'{"id":1,"method":null,"params":null,"result":2}', ("", b"1", b"null", b"2", b"")),
        (b'{"id":1,"result":"\\ud800"}', ("", b"1", b"", b'"\\ud800"', b"")),
        (b'{"id":1,"result":%b}' % DEEP, ("", b"1", b"", DEEP, b"")),
        (b'{"id":%d,"method":"m"}' % 2**80, ("m", b"%d" % 2**80, b"", b"", b"")),
    ],
)
def test_the_parts_of_a_message_are_its_bytes(
    line: bytes, expected: tuple[str, bytes, bytes, bytes, bytes]
) -> None:
    assert parts(line) == expected


@pytest.mark.parametrize(
    "line",
    [b"null", b"123", b"[]", b'"x"', b"hello", b'{"method":', b'{"method":5}', b'{"id":NaN}', b"\xff", b"["],
)
def test_what_is_no_message_is_none(line: bytes) -> None:
    assert read_message(line) is None


@given(st.binary() | st.text('{}[]":,\\ue1ethodparsi', max_size=30).map(str.encode))
def test_any_bytes_are_a_message_or_none(line: bytes) -> None:
    read_message(line)
    read_error(line)
    read_cancelled_id(line)
    id_key(line)
    read_odd_update(line, line)


def test_an_update_with_an_id_is_not_taken_for_a_notification() -> None:
    update = b'"method":"session/update","params":{"sessionId":"s","update":{}}}'
    notification, request = b'{"id":null,' + update, b'{"id":1,' + update
    (found,) = read_block(notification)
    assert isinstance(found, UpdateParams)
    assert read_block(request) == [request]


_update = st.builds(
    lambda session, text: json.dumps(
        {"method": "session/update", "params": {"sessionId": session, "update": {"text": text}}},
        ensure_ascii=False,
    ).encode("utf-8", "surrogatepass"),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "é", "\ud800", "}\n{"]),
)
_lines = st.lists(
    _update
    | st.sampled_from([b"", b" ", b"noise", b'{"id":1,"result":2}', b"\xff", DEEP])
    | st.tuples(_update, _update).map(b" ".join)  # two in one line
    | _update.map(lambda line: line[:20])
    | _update.map(lambda line: line[20:]),
    min_size=1,
)


def read(found: UpdateParams | bytes) -> object:
    return found if isinstance(found, bytes) else (found.sessionId, bytes(found.update))


@given(_lines)
def test_a_block_is_read_as_its_lines_are(lines: list[bytes]) -> None:
    alone = [read(found) for line in lines for found in read_block(line)]
    assert [read(found) for found in read_block(b"\n".join(lines))] == alone


def test_an_odd_update_keeps_its_bytes_and_its_line() -> None:
    raw = b'{"sessionUpdate":"agent_message_chunk","_meta":%b}' % DEEP
    found = read_odd_update(b'{"sessionId":"s","update": %b }' % raw, b"line")
    assert found is not None
    assert (found[0], found[1].raw, found[1].native) == ("s", raw, b"line")


@pytest.mark.parametrize(
    "params", [b"{}", b'{"sessionId":"s"}', b'{"sessionId":1,"update":{}}', b'{"sessionId":"s","update":}']
)
def test_an_update_that_does_not_say_whose_it_is_is_none(params: bytes) -> None:
    assert read_odd_update(params, b"") is None


@pytest.mark.parametrize("raw", [b"5", b"{}", b'{"code":"x","message":1}', DEEP])
def test_an_error_that_cannot_be_read_says_so(raw: bytes) -> None:
    assert "cannot be read" in read_error(raw).message


def test_an_error_keeps_its_data() -> None:
    error = read_error(json.dumps({"code": -1, "message": "m", "data": {"a": 1}}).encode())
    assert (error.code, error.message, error.data) == (-1, "m", {"a": 1})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (b'{"requestId":1}', b"1"),
        (b'{"requestId":"x"}', b'"x"'),
        (b'{"_meta":{"requestId":2},"requestId": "\\ud800" }', b'"\\ud800"'),
        (b"{}", b""),
        (b"", b""),
        (b"null", b""),
        (b"[]", b""),
    ],
)
def test_a_cancelled_id_is_read_as_written(params: bytes, expected: bytes) -> None:
    assert read_cancelled_id(params) == expected


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"1", b"1"),
        (b"-1", b"-1"),
        (b"1.0", b"1"),
        (b"1.5", b"1.5"),
        (b'"1"', b'"1"'),
        (b'"\\u0041\\/"', b'"A/"'),
        (b'"\\ud800"', b'"\\ud800"'),
        (b"%d" % 2**80, b"%d" % 2**80),
        (b"{}", b"{}"),
        (b"", b""),
    ],
)
def test_an_id_has_one_key_however_it_is_written(raw: bytes, key: bytes) -> None:
    assert id_key(raw) == key
