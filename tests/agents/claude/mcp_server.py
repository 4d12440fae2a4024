"""An MCP server with one tool, `shout`, that says what it is told in capitals, and its variable SECRET after it."""

import json
import os
import sys
from typing import Any

TOOL = {
    "name": "shout",
    "description": "Shouts",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, object]:
    if method == "initialize":
        server = {"name": "echo", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": server,
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    text = params["arguments"]["text"].upper() + os.environ["SECRET"]
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and message["method"] in ("initialize", "tools/list", "tools/call"):
        result = answer(message["method"], message.get("params", {}))
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()
