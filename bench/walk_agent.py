"""The agent of `walk.py`: an ACP agent of the standard library alone that does what its driver tells it. argv: SOCKET.

It tells the driver `prompted` and `answered`. The driver says `line TEXT` (a message chunk), `ask NAME` (a permission to
edit the file of that name) and `end` (of the turn).
"""

import json
import os
import socket
import sys
import threading
from typing import Any

session = ""
prompts: list[Any] = []  # ids of those that are not answered
OPTIONS = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]


def send(**message: Any) -> None:
    rest = memoryview(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")
    while rest:
        rest = rest[os.write(1, rest) :]


def obey(word: str, rest: str) -> None:
    if word == "line":
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": rest}}
        send(method="session/update", params={"sessionId": session, "update": update})
    elif word == "ask":
        call = {"toolCallId": rest, "title": "edit", "kind": "edit", "locations": [{"path": rest}]}
        asked = {"sessionId": session, "toolCall": call, "options": OPTIONS}
        send(id=rest, method="session/request_permission", params=asked)
    elif word == "end":
        send(id=prompts.pop(), result={"stopReason": "end_turn"})


def listen(driver: socket.socket) -> None:
    for line in driver.makefile():
        word, _, rest = line.rstrip("\n").partition(" ")
        obey(word, rest)


def main(place: str) -> None:
    global session
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(place)
    threading.Thread(target=listen, args=(driver,), daemon=True).start()
    for message in map(json.loads, sys.stdin.buffer):
        match message.get("method"):
            case "initialize":
                send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                session = f"walk-{os.getpid()}"
                send(id=message["id"], result={"sessionId": session})
            case "session/prompt":
                prompts.append(message["id"])
                driver.sendall(b"prompted\n")
            case None:
                driver.sendall(b"answered\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
