"""The smallest MCP server: one tool, `touch`, which makes the file that it is told of."""

import json
import sys
from pathlib import Path

TOOL = {
    "name": "touch",
    "description": "Makes a file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: dict[str, object] = {}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"name": "files", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif message["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif message["method"] == "tools/call":
        Path(message["params"]["arguments"]["path"]).touch()
        result = {"content": [{"type": "text", "text": "made"}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
    sys.stdout.flush()
