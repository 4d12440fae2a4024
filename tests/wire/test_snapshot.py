"""The snapshot against a plain fold, written here from the words of docs/sessions.md and from nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.naive_snapshot import ROLES, Naive, assert_same, canonical, members_of

from legation.wire.events import Draft, Event, params_draft
from legation.wire.snapshot import MOST_BYTES, SnapshotFold

LONG = st.integers(min_value=0, max_value=40_000).map(lambda size: "ü\n" * (size // 2))


def numbered(seq: int, draft: Draft) -> Event:
    return Event(seq, 0, draft.type, draft.raw, draft.native, draft.span)


def event_of(seq: int, kind: str, body: Any) -> Event:
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        text = json.dumps(body).encode()
    if kind == "update":
        return numbered(seq, params_draft("agent's own", text))
    return Event(seq, 0, kind, text)


text = st.text(max_size=30) | st.sampled_from(["\ud83d", "\ude00", '"', "\\", "\x00"]) | LONG
name = st.sampled_from(["a", "b", "c\u00e9", 'q"', "\ud83d"])
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
block = st.one_of(
    st.builds(lambda said: {"type": "text", "text": said}, text),
    st.builds(
        lambda said, extra: {"type": "text", "text": said, **extra},
        text,
        st.sampled_from(
            [{"annotations": None}, {"annotations": {"priority": 1}}, {"_meta": {"x": 1}}, {"_meta": None}]
        ),
    ),
    st.builds(lambda data: {"type": "image", "data": data, "mimeType": "image/png"}, text),
    st.just({"type": "novel", "what": [1, {"a": None}]}),
)
chunk = st.builds(
    lambda tag, content, extra: {"sessionUpdate": tag, "content": content, **extra},
    st.sampled_from(sorted(ROLES)),
    block,
    st.one_of(st.just({}), st.builds(lambda each: {"messageId": each}, name | st.none())),
)
call = st.builds(
    lambda tag, call_id, members: {"sessionUpdate": tag, "toolCallId": call_id, **members},
    st.sampled_from(["tool_call", "tool_call_update", "tool_call_update"]),
    name,
    st.fixed_dictionaries(
        {},
        optional={
            "title": text,
            "status": st.sampled_from(["pending", "in_progress", "completed", "failed", None]),
            "rawInput": json_value,
            "rawOutput": st.builds(lambda said: {"said": said}, text),
            "content": st.none() | st.just([{"type": "diff", "path": "p", "oldText": None, "newText": "n"}]),
            "_meta": json_value,
            "vendor": json_value,
        },
    ),
)
entries = st.lists(
    st.builds(lambda said: {"content": said, "priority": "low", "status": "pending"}, text), max_size=3
)
other = st.one_of(
    st.builds(lambda found: {"sessionUpdate": "plan", "entries": found}, entries),
    st.builds(
        lambda each, found: {
            "sessionUpdate": "plan_update",
            "plan": {"type": "items", "planId": each, "entries": found},
        },
        name,
        entries,
    ),
    st.builds(lambda each: {"sessionUpdate": "plan_removed", "planId": each}, name),
    st.builds(lambda said: {"sessionUpdate": "current_mode_update", "currentModeId": said}, name),
    st.builds(lambda said: {"sessionUpdate": "session_info_update", "title": said}, text | st.none()),
    st.builds(
        lambda said: {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": said}]},
        text,
    ),
    st.builds(lambda said: {"sessionUpdate": "config_option_update", "configOptions": [{"id": said}]}, text),
    st.builds(
        lambda used, meta: {"sessionUpdate": "usage_update", "used": used, "size": 9, **meta},
        st.integers(),
        st.sampled_from([{}, {"_meta": {"a": 1}}]),
    ),
    st.just({"sessionUpdate": "of_tomorrow", "x": 1}),
    st.just({"sessionUpdate": "agent_message_chunk"}),
)
own = st.one_of(
    st.tuples(
        st.just("prompt-started"),
        st.builds(lambda said: {"turn": "turn_1", "prompt": [{"type": "text", "text": said}]}, text),
    ),
    st.tuples(
        st.just("setup-facts"),
        st.builds(
            lambda mode: {"modes": {"currentModeId": mode, "availableModes": []}, "configOptions": []}, name
        ),
    ),
    st.just(("session-reset", {"reason": "loaded"})),
    st.just(("turn-state", {"turn": "turn_1", "state": "idle"})),
)
update = st.tuples(st.just("update"), st.one_of(chunk, chunk, chunk, call, call, other))


@settings(max_examples=250, deadline=None)
@given(st.lists(st.one_of(update, update, update, update, own), max_size=40), st.data())
def test_snapshot_is_what_a_plain_fold_gives_at_every_number(
    said: list[tuple[str, Any]], data: st.DataObject
) -> None:
    fold, naive = SnapshotFold(), Naive()
    for seq, (kind, body) in enumerate(said, 1):
        fold.take(event_of(seq, kind, body))
        naive.said.append((seq, kind, body))
        assert fold.seq == seq
        if data.draw(st.booleans()):
            assert_same(fold.write(), naive)
        if data.draw(st.integers(0, 5)) == 0:  # INV-S1
            state = fold.state()
            restored = SnapshotFold.restored(state) if state is not None else None
            if restored is not None:
                assert restored.write() == fold.write()
                fold = restored
    assert_same(fold.write(), naive)


@settings(max_examples=250, deadline=None)
@given(st.lists(st.one_of(update, update, update, own), max_size=40), st.data())
def test_who_begins_with_it_and_follows_has_what_one_has_who_read_all(
    said: list[tuple[str, Any]], data: st.DataObject
) -> None:
    begun = data.draw(st.integers(0, len(said)))
    fold, whole = SnapshotFold(), Naive()
    for seq, (kind, body) in enumerate(said[:begun], 1):
        fold.take(event_of(seq, kind, body))
    snapshot = json.loads(fold.write())
    cut = snapshot.pop("truncated", [])
    behind = Naive(snapshot)
    for seq, (kind, body) in enumerate(said, 1):
        whole.said.append((seq, kind, body))
        if seq > begun:
            behind.said.append((seq, kind, body))
    found, wanted = canonical(behind.fold()), canonical(whole.fold())
    for name in members_of(found, wanted, cut):
        assert found.get(name) == wanted.get(name), name


def test_an_update_of_a_call_that_had_to_give_way_leaves_the_text_around_it_one_message() -> None:
    fold, naive = SnapshotFold(), Naive()
    calls = [
        {
            "sessionUpdate": "tool_call",
            "toolCallId": f"c{at}",
            "status": "in_progress",
            "rawInput": "x" * 12_000,
        }
        for at in range(10)
    ]
    late = {"sessionUpdate": "tool_call_update", "toolCallId": "c0", "status": "completed"}
    said = [
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": each}} for each in "ab"
    ]
    for seq, body in enumerate([*calls, said[0], late, said[1]], 1):
        fold.take(event_of(seq, "update", body))
        naive.said.append((seq, "update", body))
    assert assert_same(fold.write(), naive) == ["toolCalls"]
    [message] = json.loads(fold.write())["messages"]
    assert message["content"] == [{"type": "text", "text": "ab"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(update, min_size=1, max_size=40), st.sets(st.integers(0, 40)))
def test_when_it_is_written_changes_no_byte(said: list[tuple[str, Any]], written: set[int]) -> None:
    once, often = SnapshotFold(), SnapshotFold()
    for seq, (kind, body) in enumerate(said * 5, 1):
        for fold in (once, often):
            fold.take(event_of(seq, kind, body))
        if seq % 41 in written:
            often.write()
    assert often.write() == once.write()


def chunk_event(seq: int, said: str, **more: object) -> Event:
    body = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}, **more}
    return event_of(seq, "update", body)


def test_a_long_message_keeps_its_end_and_says_so() -> None:
    fold = SnapshotFold()
    for seq in range(1, 5001):
        fold.take(chunk_event(seq, f"word {seq:06} of a long answer, "))
        if seq % 500 == 0:
            assert len(fold.write()) <= MOST_BYTES
    found = json.loads(fold.write())
    [message] = found["messages"]
    said = message["content"][0]["text"]
    assert found["truncated"] == ["messages"]
    assert message["truncated"] is True
    assert said.endswith("word 005000 of a long answer, ")
    assert 100_000 < len(said) < 128 * 1024


def test_one_chunk_longer_than_all_there_is_room_for_is_cut_between_characters() -> None:
    fold = SnapshotFold()
    fold.take(chunk_event(1, "\U0001f600" * 300_000 + "end"))
    [message] = json.loads(fold.write())["messages"]
    assert message["truncated"] is True
    assert message["content"][0]["text"].endswith("\U0001f600end")
    assert len(fold.write()) <= MOST_BYTES


def test_chunks_that_say_nothing_are_not_gathered() -> None:
    fold, seq = SnapshotFold(), 0
    for said in ("", "a", "", "b" * 5000, ""):
        for _ in range(1000):
            seq += 1
            fold.take(chunk_event(seq, said if seq % 1000 == 1 else ""))
    assert json.loads(fold.write())["messages"][0]["content"] == [{"type": "text", "text": "a" + "b" * 5000}]
    assert len(fold.parts()) < 20
    assert len(fold.state() or b"") < 6000


def test_many_short_messages_leave_the_newest() -> None:
    fold = SnapshotFold()
    for seq in range(1, 20_001):
        fold.take(chunk_event(seq, "x", messageId=f"m{seq}"))
    found = json.loads(fold.write())
    assert found["messages"][-1]["messageId"] == "m20000"
    assert len(fold.write()) <= MOST_BYTES
    assert len(fold.state() or b"") <= 2 * MOST_BYTES


def test_calls_that_are_over_give_way_first() -> None:
    fold = SnapshotFold()
    begin = {"sessionUpdate": "tool_call", "toolCallId": "runs", "title": "t", "status": "in_progress"}
    fold.take(event_of(1, "update", begin))
    for seq in range(2, 1000):
        body = {
            "sessionUpdate": "tool_call",
            "toolCallId": f"c{seq}",
            "title": "t" * 500,
            "status": "completed",
        }
        fold.take(event_of(seq, "update", body))
    found = json.loads(fold.write())
    assert found["truncated"] == ["toolCalls"]
    assert [each["toolCallId"] for each in found["toolCalls"]][::200][0] == "runs"
    assert found["toolCalls"][-1]["toolCallId"] == "c999"


def test_a_long_output_of_a_call_is_named_and_the_call_stays() -> None:
    fold = SnapshotFold()
    begin = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "rawOutput": "x" * 100_000}
    fold.take(event_of(1, "update", begin))
    found = json.loads(fold.write())
    assert found["toolCalls"] == [{"seq": 1, "toolCallId": "c", "title": "t", "truncated": ["rawOutput"]}]
    fold.take(event_of(2, "update", {**begin, "sessionUpdate": "tool_call_update", "rawOutput": "short"}))
    assert json.loads(fold.write())["toolCalls"][0]["rawOutput"] == "short"


def test_an_event_with_a_digest_is_marked_where_that_is_cut() -> None:
    digest = (
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"beg"},"_cut":["content"]}'
    )
    event = Event(1, 0, "agent-message-chunk", b"{" + b" " * 100 + b"}", digest=digest)
    fold = SnapshotFold()
    fold.take(event)
    found = json.loads(fold.write())
    assert found["truncated"] == ["messages"]
    assert found["messages"][0]["truncated"] is True


def test_bytes_that_are_no_text_never_reach_it() -> None:
    raw = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\xff"}}'
    fold = SnapshotFold()
    fold.take(Event(1, 0, "agent-message-chunk", raw))
    assert json.loads(fold.write())["messages"][0]["content"][0]["text"] == "a\ufffd"


@pytest.mark.parametrize("damage", [b"", b"1234", b"\x00" * 40])
def test_a_damaged_state_is_none(damage: bytes) -> None:
    fold = SnapshotFold()
    fold.take(chunk_event(1, "a"))
    state = fold.state()
    assert state is not None
    assert SnapshotFold.restored(state[:-1] + damage) is None
    assert SnapshotFold.restored(damage) is None
