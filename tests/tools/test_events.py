import json
from pathlib import Path

import pytest

from legation.wire.events import VERSION
from tools import events as reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
CONTRACT = Path(__file__).with_name("contract.json")


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text() == reference.page(), (
        "docs/reference/events.md is out of date: run `./dev check --fix`"
    )


def test_the_public_contract_changes_only_with_its_version() -> None:
    committed = json.loads(CONTRACT.read_text())
    if committed == reference.contract():
        return
    first = "" if committed["version"] != VERSION else "raise VERSION in src/legation/wire/events.py, then "
    pytest.fail(
        "event types or fields differ from the public contract that readers rely on. If that is meant: "
        f"{first}run `./dev check --fix`, and say in CHANGELOG.md what readers must do."
    )


def test_every_event_of_the_contract_is_on_the_page() -> None:
    contract = reference.contract()
    for stream in ("updates", "session", "host"):
        events = contract[stream]
        assert isinstance(events, dict)
        assert all(f"### {name}\n" in reference.page() for name in events)
