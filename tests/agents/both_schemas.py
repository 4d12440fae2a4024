"""What happened in a session, as its events over HTTP tell it: the same in both schemas, and all of it readable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.server.sessions.session_client import SessionClient

from legation.wire.events import UNRECOGNIZED

Event = dict[str, Any]


@dataclass
class Story:
    """In the order in which it happened."""

    said: list[str] = field(default_factory=list)  # by the agent
    calls: list[tuple[str, str]] = field(default_factory=list)  # the tool, and how the call ended
    files: list[str] = field(default_factory=list)  # of calls that were done
    permissions: list[tuple[str, str]] = field(default_factory=list)  # the tool, and the outcome
    questions: list[tuple[str, str]] = field(default_factory=list)  # the first of a form, and the outcome
    plans: list[str] = field(default_factory=list)  # questions beside a permission: how they begin
    modes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # of the turns: the stop reason, or "error"
    errors: list[str] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)  # ends of the process that nobody wanted


async def told(talk: SessionClient, session: str = "s") -> Story:
    """Fails where the schemas differ, or one of them holds something that could not be read."""
    items = _by_items(await _events(talk, session, ""))
    messages = _by_messages(await _events(talk, session, "?schema=universal"))
    assert items == messages
    return items


async def _events(talk: SessionClient, session: str, query: str) -> list[Event]:
    answer = await talk.call("GET", f"/v1/sessions/{session}/events{query}")
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert not page["hasMore"]
    return page["events"]  # type: ignore[no-any-return]


class _Telling:
    """Puts together what comes apart: a call and its result, what is asked and its answer."""

    def __init__(self) -> None:
        self.story = Story()
        self._calls: dict[str, int] = {}  # by the item: which of the calls
        self._asked: dict[str, int] = {}  # by the id: which of the permissions, or of the questions

    def called(self, item: str, tool: str, status: str) -> None:
        self._calls[item] = len(self.story.calls)
        self.story.calls.append((tool, status))

    def call_ended(self, item: str, status: str) -> None:
        at = self._calls[item]
        self.story.calls[at] = self.story.calls[at][0], status

    def permission_asked(self, ask: str, tool: str) -> None:
        self._asked[ask] = len(self.story.permissions)
        self.story.permissions.append((tool, "open"))

    def permission_answered(self, ask: str, outcome: str) -> None:
        at = self._asked.pop(ask)
        self.story.permissions[at] = self.story.permissions[at][0], outcome

    def question_asked(self, ask: str, words: str) -> None:
        if ask in self._asked:  # a plan: its permission was told just before, under the same id
            self.story.plans.append(words)
            return
        self._asked[ask] = len(self.story.questions)
        self.story.questions.append((words, "open"))

    def question_answered(self, ask: str, outcome: str) -> None:
        if ask not in self._asked:  # that of a plan, with its permission
            return
        at = self._asked.pop(ask)
        self.story.questions[at] = self.story.questions[at][0], outcome

    def ended(self, how: Event) -> None:
        self.story.ends.append("error" if how.get("error") else how["stopReason"])


# The events of sandbox-agent.


def _by_items(events: list[Event]) -> Story:
    telling = _Telling()
    for event in events:
        data = event["data"]
        match event["type"]:
            case "agent.unparsed":
                raise AssertionError(data)
            case "item.completed":
                _item(telling, data["item"])
            case "permission.requested":
                telling.permission_asked(data["permission_id"], data["action"])
            case "permission.resolved":
                outcome = data["metadata"]["outcome"]
                assert (data["status"] != "reject") == (outcome == "approved")
                telling.permission_answered(data["permission_id"], outcome)
            case "question.requested":
                telling.question_asked(data["question_id"], data["prompt"].splitlines()[0])
            case "question.resolved":
                telling.question_answered(data["question_id"], data["status"])
            case "turn.ended":
                telling.ended(data["metadata"])
            case "error":
                telling.story.errors.append(data["message"])
            case "session.ended" if data["reason"] == "error":
                telling.story.exits.append(data["message"])
    return telling.story


def _item(telling: _Telling, item: Event) -> None:
    story, content = telling.story, item["content"]
    match item["kind"]:
        case "message" if item["role"] == "assistant":
            story.said += _texts(content)
        case "tool_call":
            telling.called(item["item_id"], content[0]["name"], item["status"])
        case "tool_result":
            telling.call_ended(item["parent_id"], item["status"])
            if item["status"] == "completed":
                story.files += [part["path"] for part in content if part["type"] == "file_ref"]
        case "status" if item["native_item_id"] in ("current-mode-update", "setup-facts"):
            if content[0].get("label") == "mode":
                story.modes.append(content[0]["detail"])
        case "status" if item["native_item_id"] == "notice":
            story.notices.append(content[0]["label"].partition(": ")[2])
    assert item["native_item_id"] != UNRECOGNIZED, item


# The seed's own.


def _by_messages(events: list[Event]) -> Story:
    telling = _Telling()
    for event in events:
        data = event["data"]
        match data["type"]:
            case "message":
                assert data["message"]["type"] == "parsed", data
                _message(telling, data["message"])
            case "permission_asked":
                telling.permission_asked(data["id"], data["permission"])
            case "question_asked":
                telling.question_asked(data["id"], data["questions"][0]["question"].splitlines()[0])
            case "error" if data.get("kind") == "process_exit":
                telling.story.exits.append(data["message"])
            case "error":
                telling.story.errors.append(data["message"])
            case "unknown":
                _row(telling, data["raw"]["type"], data["raw"]["payload"])
    return telling.story


def _message(telling: _Telling, message: Event) -> None:
    story, parts, about = telling.story, message["parts"], message["metadata"]
    if message["role"] == "tool":
        telling.call_ended(about["parent_id"], about["status"])
        if about["status"] == "completed":
            story.files += [part["source"]["path"] for part in parts if part["type"] == "file"]
    elif message["role"] == "assistant":
        story.said += _texts(parts)
        for part in parts:
            if part["type"] in ("tool_call", "function_call"):
                telling.called(about["item_id"], part["name"], about["status"])


def _row(telling: _Telling, type_: str, said: Event) -> None:
    """What the schema has no word for is there as it stands in the log."""
    match type_:
        case "permission-answered":
            telling.permission_answered(said["id"], said["outcome"])
        case "question-answered":
            accepted = said["outcome"] == "accepted"
            telling.question_answered(said["id"], "answered" if accepted else "rejected")
        case "prompt-finished":
            telling.ended(said)
        case "setup-facts" if "modes" in said:
            telling.story.modes.append(said["modes"]["currentModeId"])
        case "current-mode-update":
            telling.story.modes.append(said["currentModeId"])
        case "notice":
            telling.story.notices.append(said["title"])
    assert type_ != UNRECOGNIZED, said


def _texts(parts: list[Event]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]
