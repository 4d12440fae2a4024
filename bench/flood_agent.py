"""An ACP agent that only floods: a prompt "COUNT SIZE" brings COUNT message chunks in lines of about SIZE bytes.

Only the standard library, and the lines are made beforehand and written in large blocks, so that whoever
reads is the one who is measured.
"""

import json
import os
import sys

BLOCK_LINES = 1000
BLOCK_BYTES = 4 * 1024 * 1024  # lines are rendered once; large ones only as many as fit here
NON_ASCII_EVERY = 8  # a line in so many holds other characters, as prose does

SESSION = "ses_flood"


def line(number: int, size: int) -> bytes:
    start = f"{number} →" if number % NON_ASCII_EVERY == 0 else f"{number} >"
    frame = len(render(start))
    return render(start + " flood" * max(0, (size - frame) // 6))


def render(text: str) -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": SESSION, "update": update}
    return encode({"jsonrpc": "2.0", "method": "session/update", "params": params})


def encode(message: object) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def flood(count: int, size: int) -> None:
    lines = [line(number, size) for number in range(min(BLOCK_LINES, max(1, BLOCK_BYTES // size), count))]
    block = b"".join(lines)
    whole, left = divmod(count, len(lines))
    for _ in range(whole):
        write(block)
    write(b"".join(lines[:left]))


def main() -> None:
    for request in map(json.loads, sys.stdin.buffer):
        match request.get("method"):
            case "initialize":
                result = {"protocolVersion": 1, "agentCapabilities": {}}
            case "session/new":
                result = {"sessionId": SESSION}
            case "session/prompt":
                count, size = request["params"]["prompt"][0]["text"].split()
                flood(int(count), int(size))
                result = {"stopReason": "end_turn"}
            case _:
                continue
        write(encode({"jsonrpc": "2.0", "id": request["id"], "result": result}))


if __name__ == "__main__":
    main()
