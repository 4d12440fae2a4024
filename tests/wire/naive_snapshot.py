"""A plain fold of a session's events into its snapshot, written from the words of docs/sessions.md and from nothing else."""

import copy
import json
from collections.abc import Iterable
from typing import Any

from legation.wire.events import Event
from legation.wire.snapshot import MOST_BYTES

ROLES = {"user_message_chunk": "user", "agent_message_chunk": "agent", "agent_thought_chunk": "thought"}


class Naive:
    """Everything, unbounded, made anew from all that was said each time it is asked: behind a snapshot, where one is given."""

    def __init__(self, begun: dict[str, Any] | None = None) -> None:
        self.said: list[tuple[int, str, Any]] = []
        self.begun = {"messages": [], "toolCalls": []} if begun is None else begun

    def fold(self) -> dict[str, Any]:
        state: dict[str, Any] = copy.deepcopy(self.begun)
        open_ = state.pop("open", None)
        last: dict[str, Any] | None = next((each for each in state["messages"] if each["seq"] == open_), None)
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
                self._call(state["toolCalls"], seq, body)
                if body["sessionUpdate"] == "tool_call":
                    last = None
            else:
                self._set(state, body)
        return state if last is None else {**state, "open": last["seq"]}

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
    for name in members_of(found, wanted, cut):
        assert found.get(name) == wanted.get(name), name
    if "messages" in cut:
        must_be_end_of(found["messages"], wanted["messages"])
    if "prompts" in cut:  # the last of them, whole
        shown = found.get("prompts", [])
        assert shown == wanted["prompts"][len(wanted["prompts"]) - len(shown) :]
    if "toolCalls" in cut:
        must_be_among(found["toolCalls"], wanted["toolCalls"])
    return list(cut)


def members_of(found: dict[str, Any], wanted: dict[str, Any], cut: list[str]) -> set[str]:
    """Name what is whole; `open` is one of the messages."""
    return {*found, *wanted} - {*cut} - ({"open"} if "messages" in cut else set())


def must_be_end_of(shown: list[Any], wanted: list[Any]) -> None:
    """The beginning is missing: of all messages, and of one that says so."""
    known = {each["seq"]: each for each in wanted}
    assert [each["seq"] for each in shown] == sorted(each["seq"] for each in shown)
    for each in shown:
        if each["seq"] not in known:  # its beginning had to give way, and then its id came again
            continue
        whole = known[each["seq"]]
        if not each.pop("truncated", False):
            assert each == whole
            continue
        assert {**each, "content": []} == {**whole, "content": []}
        blocks = each["content"]
        for at, (block, other) in enumerate(
            zip(reversed(blocks), reversed(whole["content"]), strict=False), 1
        ):
            if block.get("truncated"):
                assert block == {"type": other["type"], "truncated": True}
            elif at == len(blocks) and block["type"] == "text":
                assert other["text"].endswith(block["text"])
            else:
                assert block == other


def must_be_among(shown: list[Any], wanted: list[Any]) -> None:
    """Some are missing, and of one that says so members; what there is of the others is as it was said."""
    known = {each["seq"]: each for each in wanted}
    for each in shown:
        whole = known.get(each["seq"])
        if whole is None:  # it had to give way, and was told of again
            continue
        absent = {*each.pop("truncated", [])}
        assert each == {name: value for name, value in whole.items() if name not in absent}
