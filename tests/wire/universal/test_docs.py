"""The page's examples are events as the schemas have them, one of each at least."""

import json
from pathlib import Path

import msgspec
from tests.wire.universal import contract

PAGE = Path(__file__).parents[3] / "docs" / "universal-events.md"
LINES = [line for line in PAGE.read_text().splitlines() if line.startswith('{"')]


def test_every_type_of_event_is_shown_as_it_is() -> None:
    shown = [contract.read(line.encode()) for line in LINES if line.startswith('{"event_id"')]
    assert {event["type"] for event in shown} == contract.DATA.keys()


def test_every_kind_of_data_of_the_other_schema_is_shown_as_it_is() -> None:
    shown = [contract.read_message(line.encode()) for line in LINES if line.startswith('{"id"')]
    assert {event["data"]["type"] for event in shown} == {
        *("message", "started", "error", "question_asked", "permission_asked", "unknown")
    }
    assert {event["data"]["message"]["type"] for event in shown if event["data"]["type"] == "message"} == {
        "parsed",
        "unparsed",
    }


def test_all_nine_kinds_of_parts_are_shown_as_they_are() -> None:
    shown = [json.loads(line) for line in LINES if line.startswith('{"type"')]
    metadata = {"item_id": "itm_1", "status": "completed"}
    message = {"type": "parsed", "role": "assistant", "parts": shown, "metadata": metadata}
    msgspec.convert(message, contract.Parsed)
    assert len({part["type"] for part in shown}) == len(shown) == 9
