"""An ACP agent that means harm: a prompt names what it writes before it ends its turn. See `KINDS`.

Only the standard library. "paced COUNT MILLISECONDS" is the quiet one of `rival_agent.py`, beside which the others are
measured.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rival_agent import chunk, encode, paced, write  # type: ignore[import-not-found] # beside this script

MIB = 1024 * 1024
LONG = 31 * MIB  # of a line: just below what is read at all
NEAR = MIB - 4096  # of a text in a line that is just short enough to be decoded where it is read
BLOCK = 4 * MIB  # written at once

Lines = Iterable[bytes]


def update(session: str, fields: bytes) -> bytes:
    start = (
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%b","update":{' % session.encode()
    )
    return start + fields + b"}}}\n"


def request(number: int, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":"h%d","method":"%b","params":%b}\n' % (number, method.encode(), params)


def small_objects(size: int) -> bytes:
    return b"[" + b",".join([b'{"a":1}'] * (size // 8)) + b"]"


def few_objects(size: int) -> bytes:
    """As many as a line may have that is decoded where it is read."""
    each = b'{"a":"%b"}' % (b"x" * (size // 9_900 - 9))
    return b"[" + b",".join([each] * 9_900) + b"]"


def diff(session: str, size: int, number: int) -> bytes:
    old, new = (b"\\n".join([b"%b%d" % (word, at) for at in range(size // 16)]) for word in (b"a", b"b"))
    fields = b'"sessionUpdate":"tool_call","toolCallId":"d%d","title":"d","kind":"edit","content":' % number
    return update(
        session, fields + b'[{"type":"diff","path":"/x","oldText":"%b","newText":"%b"}]' % (old, new)
    )


def texts(size: int) -> bytes:
    return b'"' + b"x" * size + b'"'


def tool_call(session: str, raw_input: bytes, number: int = 0) -> bytes:
    fields = b'"sessionUpdate":"tool_call","toolCallId":"t%d","title":"t","kind":"other","rawInput":' % number
    return update(session, fields + raw_input)


def told(session: str, content: bytes) -> bytes:
    fields = b'"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":'
    return update(session, fields + content + b"}")


def permission(session: str, raw_input: bytes, number: int = 0) -> bytes:
    call = b'{"toolCallId":"p%d","title":"p","kind":"other","rawInput":%b}' % (number, raw_input)
    options = b'[{"optionId":"no","name":"no","kind":"reject_once"}]'
    params = b'{"sessionId":"%b","toolCall":%b,"options":%b}' % (session.encode(), call, options)
    return request(number, "session/request_permission", params)


def writing(session: str, text: bytes, number: int = 0) -> bytes:
    params = b'{"sessionId":"%b","path":"%b/w","content":%b}' % (
        session.encode(),
        str(Path.cwd()).encode(),
        text,
    )
    return request(number, "fs/write_text_file", params)


def many(line: Callable[[int], bytes], count: int) -> Lines:
    return map(line, range(count))


KINDS: dict[str, Callable[[str], Lines]] = {
    "nothing": lambda _: [],
    "answers": lambda _: many(
        lambda number: encode({"jsonrpc": "2.0", "id": 900_000 + number, "result": {}}), 50_000
    ),
    "strangers": lambda _: many(lambda number: chunk(f"no_{number}", "x"), 50_000),
    "one-stranger": lambda _: many(lambda _: chunk("no", "x"), 50_000),
    "unreadable": lambda _: many(lambda _: b"this is no message at all\n", 50_000),
    "broken": lambda _: many(lambda _: b'{"jsonrpc":"2.0","method":"session/update","params":{"x"\n', 20_000),
    "returns": lambda _: [b"\r" * LONG + b"\n"],
    "empty": lambda _: [b"\n" * (8 * MIB)],
    "unknown-requests": lambda _: many(lambda number: request(number, "no/such", b"{}"), 50_000),
    "unknown-notices": lambda _: many(lambda _: encode({"jsonrpc": "2.0", "method": "no/such"}), 50_000),
    "permissions": lambda session: many(lambda number: permission(session, b"{}", number), 2_000),
    "small-chunks": lambda session: many(lambda number: chunk(session, f"{number}"), 100_000),
    "tool-calls": lambda session: many(lambda number: tool_call(session, b"{}", number), 20_000),
    "long-objects": lambda session: [tool_call(session, small_objects(LONG))],
    "long-text": lambda session: [told(session, texts(LONG))],
    "long-bytes": lambda session: [told(session, b'"' + b"\xff" * LONG + b'"')],
    "long-junk": lambda _: [b"x" * LONG + b"\n"],
    "long-answer": lambda _: [b'{"jsonrpc":"2.0","id":900000,"result":%b}\n' % small_objects(LONG)],
    "long-permission": lambda session: [permission(session, small_objects(LONG))],
    "long-write": lambda session: [writing(session, texts(LONG))],
    "mid-objects": lambda session: many(lambda number: tool_call(session, small_objects(3 * MIB), number), 5),
    "mid-text": lambda session: many(lambda _: told(session, texts(3 * MIB)), 5),
    "mid-permission": lambda session: [permission(session, small_objects(3 * MIB))],
    "mid-write": lambda session: [writing(session, texts(3 * MIB))],
    "mib-objects": lambda session: many(lambda number: tool_call(session, small_objects(MIB), number), 10),
    "one-message": lambda session: many(lambda _: told(session, texts(64 * 1024)), 500),
    "deep": lambda session: many(
        lambda number: tool_call(session, b"[" * 50_000 + b"]" * 50_000, number), 10
    ),
    "deep-junk": lambda _: many(lambda _: b"[" * MIB + b"\n", 10),
    "deep-objects": lambda session: many(
        lambda number: tool_call(session, b'{"a":' * 30_000 + b"1" + b"}" * 30_000, number), 10
    ),
    "ones": lambda _: many(lambda _: b"1\n", 1_000_000),
    "many-calls": lambda session: many(lambda number: tool_call(session, b"{}", number), 100_000),
    "near-text": lambda session: many(lambda _: told(session, texts(NEAR)), 10),
    "near-escapes": lambda session: many(lambda _: told(session, b'"' + b"\\n" * (NEAR // 2) + b'"'), 10),
    "near-call": lambda session: many(lambda number: tool_call(session, texts(NEAR), number), 10),
    "near-objects": lambda session: many(lambda number: tool_call(session, few_objects(NEAR), number), 10),
    "near-diff": lambda session: many(lambda number: diff(session, NEAR, number), 10),
    "near-permission": lambda session: many(lambda number: permission(session, texts(NEAR), number), 10),
    "dense-permission": lambda session: many(
        lambda number: permission(session, small_objects(60 * 1024), number), 20
    ),
    "long-id": lambda _: [b'{"jsonrpc":"2.0","id":%b,"method":"no/such"}\n' % texts(LONG)],
    "halves": lambda session: many(lambda _: told(session, b'"' + b"\\ud800" * 150_000 + b'"'), 10),
}


def stderr(count: int) -> None:
    for _ in range(count):
        os.write(2, b"this is said to nobody, and there is much of it\n" * 1000)


def harm(session: str, kind: str) -> None:
    if kind == "stderr":
        stderr(500)
        return
    block: list[bytes] = []
    size = 0
    for line in KINDS[kind](session):
        block.append(line)
        size += len(line)
        if size > BLOCK:
            write(b"".join(block))
            block, size = [], 0
    write(b"".join(block))


def prompt(session: str, text: str) -> None:
    match text.split():
        case ["harm", kind]:
            harm(session, kind)
        case ["paced", count, milliseconds]:
            paced(session, int(count), float(milliseconds) / 1000)


def main() -> None:
    sessions = 0
    for message in map(json.loads, sys.stdin.buffer):
        result: dict[str, object]
        match message.get("method"):
            case "initialize":
                result = {"protocolVersion": 1, "agentCapabilities": {}}
            case "session/new":
                sessions += 1
                result = {"sessionId": f"ses_{os.getpid()}_{sessions}"}
            case "session/prompt":
                params = message["params"]
                prompt(params["sessionId"], params["prompt"][0]["text"])
                result = {"stopReason": "end_turn"}
            case _:
                continue
        write(encode({"jsonrpc": "2.0", "id": message["id"], "result": result}))


if __name__ == "__main__":
    main()
