import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.agents import messages
from legation.agents.messages import (
    UpdateReader,
    id_key,
    read_cancelled_id,
    read_error,
    read_message,
    read_odd_update,
)
from legation.agents.outlines import ODD_BYTES
from legation.wire.jsontext import members

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
    (found,) = UpdateReader().read(notification)
    assert isinstance(found, tuple)
    assert list(UpdateReader().read(request)) == [request]


_update = st.builds(
    lambda session, text, beside, last: json.dumps(
        {
            "method": "session/update",
            "params": {
                **({} if last else {"update": {"sessionUpdate": "plan", "text": text}, **beside}),
                "sessionId": session,
                **({**beside, "update": {"sessionUpdate": "plan", "text": text}} if last else {}),
            },
        },
        ensure_ascii=False,
    ).encode("utf-8", "surrogatepass"),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "é", "\ud800", "}\n{", '"}},']),
    st.sampled_from([{}, {"_meta": {"a": 1}}, {"vendor": {"sessionUpdate": "plan", "text": "x"}}]),
    st.booleans(),
)
# Lines with which an agent might try to be taken for another, after one that was read whole.
_HEAD = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":'
_tricks = st.sampled_from(
    [
        _HEAD + b'{"sessionUpdate":"plan"}}}',
        _HEAD + b'{"sessionUpdate":"plan"},"update":{"sessionUpdate":"notice"}}}',
        _HEAD + b'{"sessionUpdate":"plan"}},"params":{"sessionId":"b","update":{"sessionUpdate":"plan"}}}',
        _HEAD + b'{"sessionUpdate":"plan"},"sessionId":"b","x":{}}}',
        _HEAD + b'{"sessionUpdate":"plan"}},"id":{}}',
        _HEAD + b'{"sessionUpdate":"plan"}} }',
        _HEAD + b' {"sessionUpdate":"plan"}}}',
        _HEAD + b'{"sessionUpdate":"plan","sessionUpdate":"notice"}}}',
        _HEAD + b'{"sessionUpdate":7}}}',
        _HEAD + b'{"x":{}}}',
        _HEAD + b"7}}",
        _HEAD + b"}}",
        _HEAD + b'{"sessionUpdate":"plan","x":"\xff"}}}',
        _HEAD + b'{"sessionUpdate":"plan","x":"\\ud800"}}}',
        _HEAD + b'{"sessionUpdate":"plan"',
        b',"x":{}}}}',
    ]
)
_lines = st.lists(
    _update
    | _tricks
    | st.sampled_from([b"", b" ", b"noise", b'{"id":1,"result":2}', b"\xff", DEEP])
    | st.tuples(_update, _update).map(b" ".join)  # two in one line
    | _update.map(lambda line: line[:20])
    | _update.map(lambda line: line[20:]),
    min_size=1,
)


def read(reader: UpdateReader, block: bytes) -> list[object]:
    """Each line as it was read: whose it is, its type, its params and its update."""
    return [
        told
        for found in reader.read(block)
        for told in (
            [found]
            if isinstance(found, bytes)
            else [(found[0], each.type, each.raw, each.payload.strip()) for each in found[1]]
        )
    ]


@given(_lines)
def test_a_block_is_read_as_its_lines_are(lines: list[bytes]) -> None:
    """Also after others, by what is known of how they begin (INV-M1)."""
    alone = [found for line in lines for found in read(UpdateReader(), line)]
    reader = UpdateReader()
    assert read(reader, b"\n".join(lines)) == alone
    assert read(reader, b"\n".join(lines)) == alone
    assert [found for line in lines for found in read(reader, line)] == alone


@pytest.mark.parametrize(
    "params",
    [
        b'{"sessionId":"s","update":{"sessionUpdate":"plan"}}',
        b'{"sessionId":"s","_meta":{"t":1},"update":{"sessionUpdate":"plan"}}',
        b'{"sessionId":"s","update":{"sessionUpdate":"plan"},"_meta":{"t":1}}',
        b'{ "update" : {"sessionUpdate":"plan"} , "sessionId" : "s" , "x" : [1, "\\u00e9"] }',
        b'{"_meta":{"a":{"sessionUpdate":"plan"}},"update":{"sessionUpdate":"plan"},"sessionId":"s","b":0}',
    ],
)
def test_params_are_kept_byte_for_byte_with_their_update_in_its_place(params: bytes) -> None:
    line = b'{"jsonrpc":"2.0","method":"session/update","params":%b}' % params
    reader = UpdateReader()
    for found in (*reader.read(line), *reader.read(line)):
        assert not isinstance(found, bytes)
        ((draft,), session) = found[1], found[0]
        assert (session, draft.type, draft.raw) == ("s", "plan", params)
        assert draft.payload == b'{"sessionUpdate":"plan"}'
        assert min(draft.span) > 0


def test_many_sessions_of_one_agent_are_told_apart() -> None:
    line = '{"method":"session/update","params":{"sessionId":"%d","update":{"sessionUpdate":"plan"}}}'
    block = "\n".join([line % (number % 20) for number in range(200)]).encode()
    told = [(found[0], len(found[1])) for found in UpdateReader().read(block) if not isinstance(found, bytes)]
    assert told == [(str(number % 20), 1) for number in range(200)]


def test_an_odd_update_keeps_its_bytes_and_its_line() -> None:
    update = b'{"sessionUpdate":"agent_message_chunk","_meta":%b}' % DEEP
    params = b'{"sessionId":"s","update": %b }' % update
    found = read_odd_update(params, b"line")
    assert found is not None
    assert (found[0], found[1].raw, found[1].payload, found[1].native) == ("s", params, update, b"line")


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


@pytest.mark.parametrize(
    ("params", "found"),
    [
        (b'{"requestId": "a"}', b'"a"'),
        (b'{"x":[1,2],"requestId":7}', b"7"),
        (b'{"requestId":"\\ud800"}', b'"\\ud800"'),
        (b'{"x":"\\ud800","requestId":7}', b"7"),
        (b"{}", b""),
        (b"[]", b""),
        (b"", b""),
        (b'{"x":[%b],"requestId":7}' % b",".join([b"1"] * 30_000), b"7"),
    ],
)
def test_a_cancelled_request_is_found_and_long_params_are_not_walked_through(
    params: bytes, found: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[int] = []

    def watched(text: bytes) -> dict[str, bytes]:
        walked.append(len(text))
        return members(text)

    monkeypatch.setattr(messages, "members", watched)
    assert read_cancelled_id(params) == found
    assert max(walked, default=0) <= ODD_BYTES
