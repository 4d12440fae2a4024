"""Bounds of the projection: very long messages and very many calls."""

import json
from collections.abc import Sequence

import pytest
from tests.wire.universal.laws import FACTS, check, completed, project, text_of
from tests.wire.universal.logs import Entry, block, call, change, chunk, log, turn

from legation.wire.event_types import (
    PromptFinished,
)
from legation.wire.universal import text
from legation.wire.universal.output import json_bytes
from legation.wire.universal.projector import Projector
from legation.wire.universal.text import MOST_TEXT

MOST_PARTS = MOST_TEXT // 1024  # of a message that are no text


def test_a_message_that_is_very_long_goes_on_in_another_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an item repeats its text, and nobody may be held up by that."""
    monkeypatch.setattr("legation.wire.universal.text.MOST_TEXT", 100)
    found = check(log(*[chunk(f"{number:020}") for number in range(30)]))
    ended = [text_of(event["data"]["item"]) for event in found if event["type"] == "item.completed"]
    assert len(ended) > 3
    assert max(map(len, ended)) < 150
    assert "".join(f"{number:020}" for number in range(30)).startswith("".join(ended))


def test_a_turn_of_very_many_calls_ends_the_oldest_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its end would end them all at once."""
    monkeypatch.setattr("legation.wire.universal.items.KEPT", 5)
    told = log(*turn(*[call(f"c{number}", title="t") for number in range(30)]))
    ended = [event for event in check(told) if event["type"] == "item.completed"]
    assert len(ended) >= 30
    projector = Projector(FACTS)
    assert max(len(projector.feed(event)) for event in told) <= 8


def test_calls_that_say_much_end_the_oldest_before_the_end_of_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is open is repeated at the end of a turn, at once, and is in memory until then."""
    monkeypatch.setattr("legation.wire.universal.items.KEPT_BYTES", 50_000)
    long = {"content": "x" * 10_000}
    told = log(
        *turn(*[call(f"c{number}", title="t", rawInput=long) for number in range(30)], call("c29", title="t"))
    )
    ended = [event for event in check(told) if event["type"] == "item.completed"]
    assert len(ended) >= 30
    projector = Projector(FACTS)
    assert max(sum(len(each.encode()) for each in projector.feed(event)) for event in told) < 100_000


def test_a_call_that_has_ended_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.wire.universal.items.KEPT_BYTES", 50_000)
    long = {"content": "x" * 10_000}
    calls = [
        entry
        for number in range(30)
        for entry in (call(f"c{number}", title="t", rawInput=long), change(f"c{number}", status="completed"))
    ]
    items = [
        event["data"]["item"]
        for event in check(log(*turn(call("first", title="t"), *calls)))
        if event["type"] == "item.completed"
    ]
    assert [each["status"] for each in items].count("failed") == 1  # the one that never ended


@pytest.mark.heavy
def test_the_end_of_a_message_joins_few_pieces_however_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []
    one_literal = text._one_literal

    def counted(literals: Sequence[bytes | memoryview]) -> bytes | memoryview:
        joined.append(len(literals))
        return one_literal(literals)

    monkeypatch.setattr(text, "_one_literal", counted)
    told = log(*turn(*[chunk(f"{number} ") for number in range(20_000)]))
    fed, run = Projector(FACTS), Projector(FACTS)
    found = [json.loads(each.encode()) for event in told for each in fed.feed(event)]
    assert text_of(completed(found, "message")[-1]) == "".join(f"{number} " for number in range(20_000))
    at = 0
    while at < len(told):  # as a live body has it
        rows = run.go_on(told[: at + 50], at)
        if not rows:
            run.feed(told[at])
        at += len(rows) or 1
    assert max(joined) <= 2_000


@pytest.mark.parametrize("together", [1, 2, 3])
def test_pieces_that_are_joined_early_are_the_same_message(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    entries: list[Entry] = [
        chunk("a"),
        chunk("b"),
        block(type="image", data="AAAA", mimeType="image/png"),
        chunk("c"),
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\ud83d"}}',
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\ude00"}}',
        chunk("d"),
    ]
    told = log(*turn(*entries))
    expected = project(told)
    monkeypatch.setattr("legation.wire.universal.text.TOGETHER", together)
    check(told)
    assert project(told) == expected
    copied, found = Projector(FACTS), list[bytes]()
    for event in told:  # a copy of it goes on elsewhere, as from a checkpoint
        aside = copied.copy()
        aside.feed(log(chunk("elsewhere"), first=event.seq)[0])
        found += [each.encode(True) for each in copied.feed(event)]
    assert found == expected


@pytest.mark.heavy
def test_a_message_of_very_many_pictures_goes_on_in_another_item() -> None:
    """What is no text counts, too: the end of an item repeats it."""
    picture = block(type="image", data="AAAA", mimeType="image/png")
    found = check(log(*turn(*[picture for _ in range(MOST_PARTS + 100)])))
    ended = [len(item["content"]) for item in completed(found, "message") if item["role"] == "assistant"]
    assert len(ended) == 2
    assert max(ended) <= MOST_PARTS + 1


def test_a_text_is_written_when_it_comes_and_not_again_at_the_end_of_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end of a message writes megabytes at once."""
    encoded: list[int] = []

    def counted(value: object) -> bytes:
        found = json_bytes(value)
        encoded.append(len(found))
        return found

    monkeypatch.setattr(text, "json_bytes", counted)
    projector = Projector(FACTS)
    *said, ended = log(
        *[chunk("\n" * 400_000) for _ in range(5)], PromptFinished(turn="t", stop_reason="end_turn")
    )
    for event in said:
        projector.feed(event)
    encoded.clear()
    assert projector.feed(ended)[0].type == "item.completed"
    assert sum(encoded) < 1_000
