"""A plain fold of a session's events into its snapshot, written from the words of docs/sessions.md and from nothing else."""

import json
from collections.abc import Iterable
from typing import Any

from legation.wire.events import Event
from legation.wire.snapshot import MOST_BYTES

ROLES = {"user_message_chunk": "user", "agent_message_chunk": "agent", "agent_thought_chunk": "thought"}


class Naive:
    """Everything, unbounded, made anew from all that was said each time it is asked."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str, Any]] = []

    def fold(self) -> dict[str, Any]:
        state: dict[str, Any] = {"messages": [], "toolCalls": []}
        last: dict[str, Any] | None = None
        for seq, kind, body in self.said:
            if kind == "session-reset":
                state, last = {"messages": [], "toolCalls": []}, None
            elif kind == "prompt-started":
                last = None
                told = {"seq": seq, "turn": body["turn"], "prompt": body["prompt"]}
                state.setdefault("prompts", []).append(told)
            elif kind == "setup-facts":
                if body.get("modes"):
                    state["mode"] = body["modes"]["currentModeId"]
                if "configOptions" in body:
                    state["configOptions"] = body["configOptions"]
            elif body.get("sessionUpdate") in ROLES and "content" in body:
                last = self._say(state["messages"], last, seq, body)
            elif body.get("sessionUpdate") in ("tool_call", "tool_call_update"):
                known = [each["toolCallId"] for each in state["toolCalls"]]
                self._call(state["toolCalls"], seq, body)
                if body["sessionUpdate"] == "tool_call" or body["toolCallId"] not in known:
                    last = None
            else:
                self._set(state, body)
        return state

    def _say(self, messages: list[Any], last: Any, seq: int, body: Any) -> Any:
        role, name, block = ROLES[body["sessionUpdate"]], body.get("messageId"), body["content"]
        same = [each for each in messages if each["role"] == role and each.get("messageId") == name]
        if name:
            message = same[0] if same else None
        else:
            message = last if last is not None and last["role"] == role else None
        if message is None:
            message = {"role": role, "seq": seq, "content": []}
            if name:
                message["messageId"] = name
            messages.append(message)
        plain = (
            block.get("type") == "text"
            and isinstance(block.get("text"), str)
            and block.get("annotations") is None
            and block.get("_meta") is None
        )
        content = message["content"]
        if plain and content and content[-1].keys() == {"type", "text"} and content[-1]["type"] == "text":
            content[-1] = {"type": "text", "text": content[-1]["text"] + block["text"]}
        else:
            content.append({"type": "text", "text": block["text"]} if plain else block)
        return message

    def _call(self, calls: list[Any], seq: int, body: Any) -> None:
        found = next((each for each in calls if each["toolCallId"] == body["toolCallId"]), None)
        if found is not None and body["sessionUpdate"] == "tool_call":
            calls.remove(found)
            found = None
        if found is None:
            found = {"seq": seq}
            calls.append(found)
        for name, value in body.items():
            if name != "sessionUpdate" and (value is not None or name in ("rawInput", "rawOutput")):
                found[name] = value

    def _set(self, state: dict[str, Any], body: Any) -> None:
        match body.get("sessionUpdate"):
            case "plan":
                state["plan"] = body["entries"]
            case "plan_update" | "plan_removed" as kind:
                plan = body.get("plan")
                name = plan["planId"] if plan else body["planId"]
                state["plans"] = [each for each in state.get("plans", []) if each["planId"] != name]
                state["plans"] += [plan] if kind == "plan_update" else []
                if not state["plans"]:
                    del state["plans"]
            case "available_commands_update":
                state["availableCommands"] = body["availableCommands"]
            case "current_mode_update":
                state["mode"] = body["currentModeId"]
            case "config_option_update":
                state["configOptions"] = body["configOptions"]
            case "session_info_update":
                state.update({name: body[name] for name in ("title", "updatedAt") if name in body})
            case "usage_update":
                state["usage"] = {name: value for name, value in body.items() if name != "sessionUpdate"}


def naive_of(events: Iterable[Event]) -> Naive:
    """Take events of a log."""
    naive = Naive()
    for event in events:
        naive.said.append((event.seq, event.type, json.loads(event.payload.decode("utf-8", "replace"))))
    return naive


def canonical(value: Any) -> Any:
    """Two halves of a character that meet are one."""
    return json.loads(json.dumps(value))


def assert_same(text: bytes, naive: Naive) -> list[str]:
    """Hold a snapshot against it; return which members do not say all."""
    assert len(text) <= MOST_BYTES
    found, wanted = json.loads(text), canonical(naive.fold())
    cut = found.pop("truncated", [])
    for name in {*found, *wanted} - {*cut}:
        assert found.get(name) == wanted.get(name), name
    for name in cut:  # what is shown of it is the end of what was said
        if name in ("messages", "toolCalls", "prompts"):
            assert [each["seq"] for each in found.get(name, [])] == sorted(
                each["seq"] for each in found.get(name, [])
            )
    return list(cut)
