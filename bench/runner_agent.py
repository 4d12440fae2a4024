"""An ACP agent that floods: a prompt "COUNT KIND" brings COUNT notifications of about 200 bytes.

`message` are chunks of one long message, behind calls, a plan and commands that fill their shares: the snapshot is as large as it
can be. `call` are changes of one tool call, behind one of 7 KB: it stays at 8 KB. Only the standard library, and the lines are
made beforehand.
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
    return notification(update)


def notification(update: dict[str, object]) -> bytes:
    params = {"sessionId": "s", "update": update}
    return encode({"jsonrpc": "2.0", "method": "session/update", "params": params})


def beginning(kind: str) -> bytes:
    """What fills the snapshot up to where the flood is to find it."""
    if kind == "call":
        return notification({"sessionUpdate": "tool_call", "toolCallId": "c0", "rawInput": "x" * 7_000})
    calls = [
        notification({"sessionUpdate": "tool_call", "toolCallId": f"c{at}", "rawInput": "x" * 15_500})
        for at in range(5)
    ]
    entry = {"content": "x" * 7_900, "priority": "low", "status": "pending"}
    plan = notification({"sessionUpdate": "plan", "entries": [entry]})
    commands = [{"name": "c", "description": "x" * 5_900}]
    told = notification({"sessionUpdate": "available_commands_update", "availableCommands": commands})
    return b"".join((*calls, plan, told))


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
            write(beginning(kind))
            block = b"".join(render(number, kind) for number in range(BLOCK))
            for _ in range(int(count) // BLOCK):
                write(block)
            result = {"stopReason": "end_turn"}
    if "id" in request:
        write(encode({"jsonrpc": "2.0", "id": request["id"], "result": result}))
