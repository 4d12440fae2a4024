"""What the translator makes of lines that the real program printed, and of lines that nobody did."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.agents.claude.messages import SILENT, Result
from legation.agents.claude.translate import ClaudeTranslator, TranslatedLine
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    CompactionSummaryChunk,
    CompactionUpdate,
    Content,
    CurrentModeUpdate,
    Diff,
    Notice,
    Plan,
    SessionUpdate,
    Text,
    ToolCall,
    ToolCallUpdate,
    UsageUpdate,
)

RECORDINGS = Path(__file__).with_name("recordings")


def said(name: str) -> Iterator[bytes]:
    for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["dir"] == "out":
            yield json.dumps(entry["msg"]).encode()


def heard(name: str) -> list[TranslatedLine]:
    translator = ClaudeTranslator()
    return [translator.take(line) for line in said(name)]


def updates(name: str) -> list[SessionUpdate]:
    return [update for each in heard(name) for update in each.updates]


def take(*lines: Mapping[str, object]) -> list[SessionUpdate]:
    translator = ClaudeTranslator()
    return [update for line in lines for update in translator.take(json.dumps(line).encode()).updates]


def texts(kind: type[AgentMessageChunk | AgentThoughtChunk], found: list[SessionUpdate]) -> list[str]:
    contents = [each.content for each in found if isinstance(each, kind)]
    return [each.text for each in contents if isinstance(each, Text)]


def assistant(*blocks: dict[str, object], message: str = "m1", **more: object) -> dict[str, object]:
    return {"type": "assistant", "message": {"id": message, "content": list(blocks)}, **more}


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl") if path.stem != "version")
)
def test_every_recorded_line_is_understood(name: str) -> None:
    found = heard(name)
    assert found
    assert [each for each in found if each.message is None or not each.known] == []


def test_what_was_streamed_is_not_said_again() -> None:
    found = updates("said-partial")
    assert "".join(texts(AgentMessageChunk, found)).count("I will create") == 1
    assert "".join(texts(AgentThoughtChunk, found)).count("I will write the file.") == 1


def test_what_was_not_streamed_is_said_whole() -> None:
    [chunk] = take(assistant({"type": "text", "text": "Hello"}))
    assert chunk == AgentMessageChunk(content=Text(text="Hello"), message_id="m1")


def test_a_list_of_things_to_do_is_a_plan() -> None:
    plans = [each for each in updates("said-todo") if isinstance(each, Plan)]
    assert [[entry.status for entry in plan.entries] for plan in plans] == [
        ["in_progress", "pending"],
        ["completed", "in_progress"],
    ]


def test_tasks_that_are_made_and_changed_one_by_one_are_a_plan() -> None:
    def made(
        call: str, name: str, given: dict[str, object], back: dict[str, object]
    ) -> list[dict[str, object]]:
        result = {"type": "tool_result", "tool_use_id": call, "content": "ok"}
        return [
            assistant({"type": "tool_use", "id": call, "name": name, "input": given}),
            {"type": "user", "message": {"content": [result]}, "tool_use_result": back},
        ]

    found = take(
        *made("1", "TaskCreate", {"subject": "Write"}, {"task": {"id": "7", "subject": "Write"}}),
        *made("2", "TaskCreate", {"subject": "Test"}, {"task": {"id": "8", "subject": "Test"}}),
        *made("3", "TaskUpdate", {"taskId": "7", "status": "completed"}, {"success": True}),
        *made("4", "TaskUpdate", {"taskId": "8", "status": "deleted"}, {"success": True}),
    )
    plans = [
        [(entry.content, entry.status) for entry in each.entries] for each in found if isinstance(each, Plan)
    ]
    assert plans[2:] == [[("Write", "completed"), ("Test", "pending")], [("Write", "completed")]]


def test_an_edit_carries_its_diff_to_the_end() -> None:
    found = updates("said-edit")
    edit = next(each for each in found if isinstance(each, ToolCall) and each.name == "Edit")
    assert edit.content is not None
    assert isinstance(edit.content[0], Diff)
    assert (edit.content[0].old_text, edit.content[0].new_text) == ("hello", "goodbye")
    over = next(
        each for each in found if isinstance(each, ToolCallUpdate) and each.tool_call_id == edit.tool_call_id
    )
    assert over.status == "completed"
    assert over.content is not None
    assert over.content[0] == edit.content[0]


def test_a_file_that_was_overwritten_shows_what_it_was() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    details = {"type": "update", "filePath": "/w/a", "content": "new", "originalFile": "old"}
    found = take(
        assistant(
            {"type": "tool_use", "id": "t", "name": "Write", "input": {"file_path": "/w/a", "content": "new"}}
        ),
        {"type": "user", "message": {"content": [result]}, "tool_use_result": details},
    )
    update = found[-1]
    assert isinstance(update, ToolCallUpdate)
    assert update.content == (
        Diff(path="/w/a", new_text="new", old_text="old"),
        Content(content=Text(text="ok")),
    )


def test_a_command_that_failed_failed() -> None:
    last = [each for each in updates("said-shellfail") if isinstance(each, ToolCallUpdate)][-1]
    assert last.status == "failed"


def test_a_rule_of_its_own_that_refuses_is_told() -> None:
    [notice] = [each for each in updates("said-denied") if isinstance(each, Notice)]
    assert (notice.severity, "Write" in notice.title) == ("warning", True)


def test_a_compaction_is_told_with_its_summary() -> None:
    found = updates("said-controls")
    compactions = [each for each in found if isinstance(each, CompactionUpdate)]
    assert [each.status for each in compactions] == ["in_progress", "completed"]
    [summary] = [each for each in found if isinstance(each, CompactionSummaryChunk)]
    assert summary.compaction_id == compactions[0].compaction_id == compactions[1].compaction_id
    assert CurrentModeUpdate(current_mode_id="acceptEdits") in found


def test_errors_are_the_programs_words_and_name_their_kind() -> None:
    translator = ClaudeTranslator()
    lines = [translator.take(line) for line in said("errors")]
    results = [each for each in lines if isinstance(each.message, Result)]
    assert [each.failure for each in results] == ["rate_limit", None]


def test_the_context_and_the_cost_are_told_at_the_end() -> None:
    [usage] = [each for each in updates("turn") if isinstance(each, UsageUpdate)]
    assert usage.cost is not None
    assert usage.cost.amount > 0
    assert 0 < usage.used < usage.size


def test_slash_commands_that_change_are_told() -> None:
    line = {
        "type": "system",
        "subtype": "commands_changed",
        "commands": [{"name": "verify", "description": "Verify", "argumentHint": "<what>"}],
    }
    [update] = take(line)
    assert isinstance(update, AvailableCommandsUpdate)
    assert update.available_commands[0].input is not None


def test_silent_lines_are_named_with_a_reason_each() -> None:
    for name, reason in SILENT.items():
        kind, _, subtype = name.partition("/")
        found = ClaudeTranslator().take(json.dumps({"type": kind, "subtype": subtype}).encode())
        assert (found.known, found.updates, bool(reason)) == (True, (), True)


@pytest.mark.parametrize(
    "line",
    [
        {"type": "news"},
        {"type": "system", "subtype": "news"},
        {"type": "assistant", "message": 7},
        {"type": "stream_event", "event": {"type": "news"}},
        assistant({"type": "hologram"}),
    ],
)
def test_what_is_not_known_is_told_so(line: dict[str, object]) -> None:
    found = ClaudeTranslator().take(json.dumps(line).encode())
    assert found.message is not None
    assert not found.known


def test_what_is_known_of_a_line_is_told_though_a_part_is_not() -> None:
    line = assistant({"type": "hologram"}, {"type": "text", "text": "Hello"})
    found = ClaudeTranslator().take(json.dumps(line).encode())
    assert (found.known, texts(AgentMessageChunk, list(found.updates))) == (False, ["Hello"])


@pytest.mark.parametrize(
    "text", [b"Hello", b"[1]", b'"x"', b"{}", b'{"type": 3}', b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_line_is_no_message(text: bytes) -> None:
    assert ClaudeTranslator().take(text).message is None


def test_a_lone_surrogate_is_read() -> None:
    line = rb'{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"a\ud800b"}]}}'
    found = ClaudeTranslator().take(line)
    assert found.known
    assert texts(AgentMessageChunk, list(found.updates)) == ["a\ud800b"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_TYPES = st.sampled_from(
    ["assistant", "user", "stream_event", "result", "system", "tool_progress", "control_request", "x"]
)
_SUBTYPES = st.sampled_from(
    ["init", "status", "api_retry", "task_started", "task_notification", "informational"]
)
_MEMBERS = st.sampled_from(
    [
        "message",
        "event",
        "content",
        "tool_use_id",
        "status",
        "usage",
        "modelUsage",
        "request",
        "origin",
        "summary",
    ]
)


@given(type_=_TYPES, subtype=_SUBTYPES, members=st.dictionaries(_MEMBERS, _JSON, max_size=5))
@pytest.mark.heavy
def test_no_line_raises(type_: str, subtype: str, members: dict[str, object]) -> None:
    ClaudeTranslator().take(json.dumps({"type": type_, "subtype": subtype, **members}).encode())


@pytest.mark.heavy
@given(
    blocks=st.lists(
        st.dictionaries(st.sampled_from(["type", "text", "id", "input", "content", "name"]), _JSON),
        max_size=3,
    )
)
def test_no_block_raises(blocks: list[dict[str, object]]) -> None:
    for type_ in ("assistant", "user"):
        ClaudeTranslator().take(json.dumps({"type": type_, "message": {"content": blocks}}).encode())
