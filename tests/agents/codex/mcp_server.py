"""An MCP server on stdio for the tests: one tool that gives back its text, one that says it only reads, one that asks."""

import json
import sys
from typing import Any

COLOURS = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["Red", "Blue"]}}}
READS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
TOOLS = [
    {"name": "echo", "description": "Echo", "inputSchema": {"type": "object"}},
    {"name": "look", "description": "Look", "inputSchema": {"type": "object"}, "annotations": READS},
    {"name": "ask", "description": "Ask", "inputSchema": {"type": "object"}},
]


def send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def called(name: str, given: object) -> str:
    if name != "ask":
        return f"{name}: {json.dumps(given)}"
    params = {"message": "Which colour?", "requestedSchema": COLOURS}
    send(id="question", method="elicitation/create", params=params)
    return json.dumps(json.loads(sys.stdin.readline())["result"])


def answer(method: str, params: dict[str, Any]) -> dict[str, object]:
    if method == "initialize":
        info = {"name": "echo", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        text = called(params["name"], params.get("arguments"))
        return {"content": [{"type": "text", "text": text}]}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            send(id=asked["id"], result=answer(asked["method"], asked.get("params") or {}))
