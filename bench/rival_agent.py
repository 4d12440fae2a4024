"""The agent that both servers of `rival.py` start: an ACP agent on stdio, of the standard library alone.

A prompt "flood COUNT SIZE" brings COUNT message chunks whose text is SIZE bytes, as fast as they are read, with a write
for each, as agents do; "paced COUNT MILLISECONDS" one by one, with the time in each. Every text begins with its number:
`#00000001#`.
"""

import json
import os
import sys
import time

NUMBER = b"#%08d#"
MARK = len(NUMBER % 0)


def encode(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def chunk(session: str, text: str) -> bytes:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": session, "update": update}
    return encode({"jsonrpc": "2.0", "method": "session/update", "params": params})


def write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def flood(session: str, count: int, size: int) -> None:
    before, after = chunk(session, "@@" + "x" * (size - MARK)).split(b"@@")
    line = before + NUMBER + after
    for number in range(count):
        write(line % number)


def paced(session: str, count: int, pause: float) -> None:
    for number in range(count):
        time.sleep(pause)
        write(chunk(session, f"#{number:08d}# at {time.monotonic_ns()} ns"))


def prompt(session: str, text: str) -> None:
    match text.split():
        case ["flood", count, size]:
            flood(session, int(count), int(size))
        case ["paced", count, milliseconds]:
            paced(session, int(count), float(milliseconds) / 1000)


def main() -> None:
    sessions = 0
    for request in map(json.loads, sys.stdin.buffer):
        result: dict[str, object]
        match request.get("method"):
            case "initialize":
                result = {"protocolVersion": 1, "agentCapabilities": {}}
            case "session/new":
                sessions += 1
                result = {"sessionId": f"ses_{sessions}"}
            case "session/prompt":
                params = request["params"]
                prompt(params["sessionId"], params["prompt"][0]["text"])
                result = {"stopReason": "end_turn"}
            case _:
                continue
        write(encode({"jsonrpc": "2.0", "id": request["id"], "result": result}))


if __name__ == "__main__":
    main()
