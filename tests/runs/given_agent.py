"""An agent that tells what it was given, as JSON in one message: variables, arguments, folder, MCP servers, skills. Told `edit`, it asks
whether it may, and says what it was answered.

Run as a program. It loads the standard library alone, so that nothing of ours is in its way.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": "s", "update": update})


def skills() -> dict[str, str]:
    return {str(each): each.read_text() for each in sorted(Path().glob(".*/skill*/*/SKILL.md"))}


def dotted(given: object) -> object:
    """Spell texts with dots, so that the literal replacement of secrets does not see them: the test puts them together again."""
    if isinstance(given, dict):
        return {name: dotted(each) for name, each in given.items()}
    if isinstance(given, list):
        return [dotted(each) for each in given]
    return "\u00b7".join(given) if isinstance(given, str) else given


def ask() -> None:
    call = {
        "toolCallId": "c1",
        "title": "Write a.txt",
        "kind": "edit",
        "rawInput": {"path": "a.txt", "content": "x"},
    }
    options = [{"optionId": each, "name": each, "kind": each} for each in ("allow_once", "reject_once")]
    send(
        id=99,
        method="session/request_permission",
        params={"sessionId": "s", "toolCall": call, "options": options},
    )
    while (message := read()).get("id") != 99:
        pass
    say(f"answered {json.dumps(message['result'])}")


def main() -> None:
    servers: list[Any] = []
    while True:
        message = read()
        method = message.get("method")
        if method == "initialize":
            can = {"mcpCapabilities": {"http": True}}
            send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": can})
        elif method == "session/new":
            servers = message["params"]["mcpServers"]
            send(id=message["id"], result={"sessionId": "s"})
        elif method == "session/prompt":
            text = message["params"]["prompt"][0]["text"]
            given = {
                "prompt": text,
                "argv": sys.argv[1:],
                "env": dict(os.environ),
                "cwd": str(Path.cwd()),
                "mcp": servers,
                "skills": skills(),
                "files": sorted(each.name for each in Path().iterdir()),
            }
            say(json.dumps(dotted(given)))
            if "edit" in text:
                ask()
            say(f"and in clear: {os.environ.get('MY_KEY')} {json.dumps(servers)}")
            send(id=message["id"], result={"stopReason": "end_turn"})


if __name__ == "__main__":
    main()
