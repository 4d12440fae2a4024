"""A small ACP agent that keeps its sessions in a folder, one file for each with the prompts that it got: run as a program.

argv: FOLDER. `say TEXT` is said; `hold TEXT` asks for an edit first, and ends the turn when that is answered. It resumes and
loads sessions of its other processes. Beside each session stands the number of the process that has it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

folder = Path(sys.argv[1])
held: dict[
    str, tuple[Any, str]
] = {}  # by the id of the question: the prompt that waits for it, and its session
OPTIONS = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
CAN = {"loadSession": True, "sessionCapabilities": {"resume": {}}}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say(session: str, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": session, "update": update})


def have(session: str) -> None:
    (folder / f"{session}.pid").write_text(str(os.getpid()))


def prompt(number: Any, session: str, text: str) -> None:
    with (folder / session).open("a") as kept:
        kept.write(text + "\n")
    word, _, rest = text.partition(" ")
    if word == "say":
        say(session, rest)
        send(id=number, result={"stopReason": "end_turn"})
        return
    name = f"{session}/{rest}"
    held[name] = number, session
    call = {
        "toolCallId": name,
        "title": "edit",
        "kind": "edit",
        "locations": [{"path": str(Path.cwd() / rest)}],
    }
    asked = {"sessionId": session, "toolCall": call, "options": OPTIONS}
    send(id=name, method="session/request_permission", params=asked)


def release(name: str, reason: str) -> None:
    number, _ = held.pop(name)
    send(id=number, result={"stopReason": reason})


def take(message: dict[str, Any]) -> None:
    number, params = message.get("id"), message.get("params", {})
    session = params.get("sessionId", "")
    match message.get("method"):
        case "initialize":
            send(id=number, result={"protocolVersion": 1, "agentCapabilities": CAN, "authMethods": []})
        case "session/new":
            session = f"keep-{os.getpid()}-{len(list(folder.iterdir()))}"
            (folder / session).touch()
            have(session)
            send(id=number, result={"sessionId": session})
        case "session/load" | "session/resume" as method:
            have(session)
            if method == "session/load":
                for text in (folder / session).read_text().splitlines():
                    say(session, text)
            send(id=number, result={})
        case "session/prompt":
            prompt(number, session, params["prompt"][0]["text"])
        case "session/cancel":
            for name in [name for name, (_, its) in held.items() if its == session]:
                release(name, "cancelled")
        case None if number in held:
            release(number, "end_turn")
        case None:
            pass
        case _ if number is not None:
            send(id=number, error={"code": -32601, "message": "unknown"})


if __name__ == "__main__":
    for line in sys.stdin:
        take(json.loads(line))
