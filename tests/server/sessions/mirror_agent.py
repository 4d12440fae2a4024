"""A small ACP agent that answers every prompt with what it was given: run as a program.

`ask a.txt b.txt` makes it ask for these edits, all at the same time, and end the turn when all are answered. `background`
makes it begin a tool call that goes on when the turn has ended.
`--load` makes it load sessions instead of resuming them (with `--resume` both), `--new` makes it do neither. With `--wait`
it says in a file `asked` of the session's folder that it is to take it up, and does so when somebody writes to `go`
there. With `--late` it does the same in the folder that it starts in before it says hello. With `--refuse` it has
lost every session of another process, unless there is a file `found` in the session's folder; that may name the method.
`--close` makes it close sessions. With `--held` it waits like that before it answers a method of which there is a file in
the session's folder, once: `hold session new`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

OPTIONS = {"model": ["small", "large"], "effort": ["low", "high"], "mode": ["build", "plan", "docs", "yolo"]}
CATEGORIES = {"model": "model", "effort": "thought_level", "mode": "mode"}
chosen = {name: values[0] for name, values in OPTIONS.items()}
given: dict[str, Any] = {}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def options() -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "name": name,
            "category": CATEGORIES[name],
            "type": "select",
            "currentValue": chosen[name],
            "options": [{"value": value, "name": value} for value in values],
        }
        for name, values in OPTIONS.items()
    ]


def capabilities() -> dict[str, Any]:
    can: dict[str, Any] = {"mcpCapabilities": {"http": True, "sse": False}}
    if "--load" in sys.argv:
        can["loadSession"] = True
    if "--resume" in sys.argv or not {"--load", "--new"} & {*sys.argv}:
        can["sessionCapabilities"] = {"resume": {}}
    if "--close" in sys.argv:
        can.setdefault("sessionCapabilities", {})["close"] = {}
    return can


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    hold(method, Path(params.get("cwd") or given.get("cwd") or Path.cwd()))
    if method == "initialize" and "--late" in sys.argv:
        wait(Path.cwd())
    if method == "initialize":
        return {"protocolVersion": 1, "agentCapabilities": capabilities(), "authMethods": []}
    if method in ("session/resume", "session/load") and "--wait" in sys.argv:
        wait(Path(params["cwd"]))
    taken_up = method in ("session/resume", "session/load")
    if taken_up and "--refuse" in sys.argv and not is_found(Path(params["cwd"]) / "found", method):
        raise LookupError(method)
    if method in ("session/new", "session/resume", "session/load"):
        given.update(opened=method, **{name: params.get(name) for name in ("cwd", "mcpServers")})
        return {"sessionId": f"mir-{os.getpid()}", "configOptions": options()}
    if method == "session/set_config_option":
        chosen[params["configId"]] = params["value"]
        return {"configOptions": options()}
    if method == "session/prompt" and (words := params["prompt"][0]["text"].split())[0] == "ask":
        return ask(params["sessionId"], words[1:])
    if method == "session/prompt" and words[0] == "background":
        call = {"toolCallId": "long", "title": "test", "kind": "execute", "status": "in_progress"}
        begun = {"sessionId": params["sessionId"], "update": {"sessionUpdate": "tool_call", **call}}
        send(method="session/update", params=begun)
        return {"stopReason": "end_turn"}
    if method == "session/prompt":
        text = json.dumps({**given, "chosen": chosen, "prompt": params["prompt"], "where": str(Path.cwd())})
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        send(method="session/update", params={"sessionId": params["sessionId"], "update": update})
        return {"stopReason": "end_turn"}
    if method == "session/close" and "--close" in sys.argv:
        return {}
    raise KeyError(method)


def hold(method: str, folder: Path) -> None:
    held = folder / f"hold {method.replace('/', ' ')}"
    if "--held" in sys.argv and held.exists():
        held.unlink()
        wait(folder)


def is_found(path: Path, method: str) -> bool:
    return path.exists() and path.read_text() in ("", method)


def wait(folder: Path) -> None:
    (folder / "asked").touch()
    (folder / "go").read_text()


def ask(session: str, names: list[str]) -> dict[str, Any]:
    choices = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    for name in names:
        call = {
            "toolCallId": name,
            "title": "edit",
            "kind": "edit",
            "locations": [{"path": str(Path.cwd() / name)}],
        }
        permission = {"sessionId": session, "toolCall": call, "options": choices}
        send(id=f"ask-{name}", method="session/request_permission", params=permission)
    waiting = {f"ask-{name}" for name in names}
    while waiting:
        waiting.discard(json.loads(sys.stdin.readline()).get("id"))
    return {"stopReason": "end_turn"}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        try:
            send(id=message["id"], result=answer(message["method"], message.get("params", {})))
        except KeyError:
            send(id=message["id"], error={"code": -32601, "message": "unknown"})
        except LookupError as error:
            data = {"details": f"{error}: no conversation found", "where": "the agent's own words"}
            send(id=message["id"], error={"code": -32603, "message": "Internal error", "data": data})
