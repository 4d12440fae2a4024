"""An ACP agent that floods: a prompt "COUNT KIND" brings COUNT notifications of about 200 bytes.

`message` are chunks of one long message, so that the snapshot is as large as it can be; `call` are changes of one tool call,
so that it stays small. Only the standard library, and the lines are made beforehand.
"""

import json
import os
import sys

BLOCK = 1000  # lines
TEXT = "flood " * 14


def render(number: int, kind: str) -> bytes:
    update: dict[str, object] = {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": f"{number:05} {TEXT}"},
    }
    if kind == "call":
        update = {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "rawOutput": f"{number:05} {TEXT}"}
    params = {"sessionId": "s", "update": update}
    return encode({"jsonrpc": "2.0", "method": "session/update", "params": params})


def encode(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


for request in map(json.loads, sys.stdin.buffer):
    result: dict[str, object] = {}
    match request.get("method"):
        case "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {}}
        case "session/new":
            result = {"sessionId": "s"}
        case "session/prompt":
            count, kind = request["params"]["prompt"][0]["text"].split()
            block = b"".join(render(number, kind) for number in range(BLOCK))
            for _ in range(int(count) // BLOCK):
                write(block)
            result = {"stopReason": "end_turn"}
    if "id" in request:
        write(encode({"jsonrpc": "2.0", "id": request["id"], "result": result}))
