"""Only the text of a chunk is read, and nobody can tell (INV-U7)."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.universal.laws import FACTS, project
from tests.wire.universal.logs import chunk

from legation.wire.acp.updates import AgentMessageChunk, decode_update
from legation.wire.events import Event
from legation.wire.universal.output import FRAME, join_frames
from legation.wire.universal.projector import Projector
from legation.wire.universal.text import Chunk, read_text, template_of

TYPE = "agent-message-chunk"
_texts = st.text(st.characters(exclude_categories=()))  # halves of characters too
_metas = st.none() | st.dictionaries(
    st.sampled_from(["text", "n"]), st.sampled_from(["a", "b", 1]), max_size=2
)


def written(value: object, *, ascii_only: bool = True, spaces: bool = False) -> bytes:
    separators = None if spaces else (",", ":")
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def update(
    text: str, message: str | None = None, meta: object = None, *, first: bool = True
) -> dict[str, Any]:
    extra = {} if meta is None else {"_meta": meta}
    return {**extra, **chunk(text, message)} if first else {**chunk(text, message), **extra}


def read(raw: bytes) -> Chunk:
    found = decode_update(raw)
    assert isinstance(found, AgentMessageChunk)
    return found


def texts(raw: bytes) -> list[str]:
    return [
        each["data"]["delta"] for each in map(json.loads, project(raw_log(raw))) if "delta" in each["data"]
    ]


def raw_log(*raws: bytes) -> list[Event]:
    return [Event(number, 1000 + number, TYPE, raw) for number, raw in enumerate(raws, 1)]


@given(
    st.lists(
        st.tuples(
            st.builds(update, _texts, st.sampled_from([None, "m1", "\ud83d"]), _metas, first=st.booleans()),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
    )
)
def test_a_log_is_told_as_if_every_chunk_were_read_whole(
    chunks: list[tuple[dict[str, Any], bool, bool]],
) -> None:
    raws = [written(value, ascii_only=ascii_only, spaces=spaces) for value, ascii_only, spaces in chunks]
    told = project(raw_log(*raws))
    deltas = [each["data"]["delta"] for each in map(json.loads, told) if each["type"] == "item.delta"]
    assert deltas == [text for raw in raws for text in texts(raw)]
    for each in told:
        each.decode()
        assert b"\n" not in each
        assert b"\r" not in each


@given(
    st.lists(st.builds(update, _texts, st.sampled_from([None, "m1", "\ud83d"]), _metas), min_size=1),
    st.booleans(),
)
def test_a_run_gives_the_frames_of_what_is_fed_one_by_one(
    chunks: list[dict[str, Any]], ascii_only: bool
) -> None:
    log = raw_log(*[written(each, ascii_only=ascii_only) for each in chunks])
    whole = Projector(FACTS)
    expected = [FRAME % (each.sequence, each.encode()) for event in log for each in whole.feed(event)]
    runs, at, found = Projector(FACTS), 0, list[bytes]()
    while at < len(log):
        rows = runs.go_on(log, at)
        if rows:
            assert [row.cause for row in rows] == [event.seq for event in log[at : at + len(rows)]]
            found += [join_frames([row]) for row in rows]
            at += len(rows)
        else:
            found += [FRAME % (each.sequence, each.encode()) for each in runs.feed(log[at])]
            at += 1
    assert found == expected
    assert runs.sequence == whole.sequence
    ending = Event(len(log) + 1, 1, "prompt-started", b'{"turn":"trn_9","prompt":[]}')
    assert [each.encode() for each in runs.feed(ending)] == [each.encode() for each in whole.feed(ending)]


def test_most_chunks_are_read_by_their_mold() -> None:
    log = raw_log(*[written(update(text)) for text in "abc"])
    projector = Projector(FACTS)
    projector.feed(log[0])
    assert len(projector.go_on(log, 1)) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b'{"sessionUpdate":"agent_message_chunk","_meta":{"text":"a"},"content":{"type":"text","text":"a"}}',
        b'{"sessionUpdate":"agent_message_chunk","messageId":"\\"text\\":\\"a\\"","content":{"text":"a","type":"text"}}',
    ],
)
def test_a_text_elsewhere_is_not_the_text(raw: bytes) -> None:
    mold = template_of(Event(1, 2, TYPE, raw), read(raw))
    if mold is not None:
        other = raw.replace(b'"text":"a","type"', b'"text":"b","type"')
        assert read_text(mold.literal(other)) == "b"


def test_no_text_is_looked_for_in_a_chunk_that_is_very_long() -> None:
    """It would hold up everybody."""
    raw = written(update("a" * 300_000))
    assert template_of(Event(1, 2, TYPE, raw), read(raw)) is None
    assert [len(text) for text in texts(raw)] == [300_000]


def test_a_text_that_is_said_twice_has_no_mold() -> None:
    raw = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a","text":"b"}}'
    assert template_of(Event(1, 2, TYPE, raw), read(raw)) is None


def test_a_message_with_half_a_character_in_its_name_is_told_like_others() -> None:
    told = [
        json.loads(each) for each in project(raw_log(*[written(update(text, "\ud83d")) for text in "ab"]))
    ]
    deltas = [each["data"] for each in told if each["type"] == "item.delta"]
    assert [(each["native_item_id"], each["delta"]) for each in deltas] == [("\ud83d", "a"), ("\ud83d", "b")]


@pytest.mark.parametrize(
    "rest", [b'a","x":"', b'a"}', b"a\\", b"\xff", b"a\tb", b'a","text":"b', b"\\ud83d", b"\r", b'"', b""]
)
def test_what_is_no_text_is_read_whole(rest: bytes) -> None:
    first = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}'
    second = first.replace(b'"a"', b'"%b"' % rest)
    alone = [json.loads(each) for each in project(raw_log(second))]
    after = [json.loads(each) for each in project(raw_log(first, second))]
    told = [(each["type"], each["data"].get("delta")) for each in alone if each["type"] != "session.started"]
    assert [(each["type"], each["data"].get("delta")) for each in after][-1] == told[-1]


def test_one_that_goes_on_from_a_copy_shares_nothing_that_is_said_later() -> None:
    log = raw_log(*[written(update(text)) for text in "abcd"])
    ending = Event(9, 1, "prompt-started", b'{"turn":"trn_9","prompt":[]}')
    first = Projector(FACTS)
    first.feed(log[0])
    second = first.copy()
    first.go_on(log, 1)
    second.feed(log[3])
    third = second.copy()
    third.feed(log[1])
    second.go_on(log, 2)
    for projector, text in ((first, "abcd"), (second, "adcd"), (third, "adb")):
        completed = msgspec.json.decode(projector.feed(ending)[0].encode())
        assert completed["data"]["item"]["content"] == [{"type": "text", "text": text}]
