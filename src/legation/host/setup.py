"""What an agent answers when it takes a session, its modes and options, as an event of our own."""

from __future__ import annotations

from legation.wire import jsontext
from legation.wire.acp.content import Unread
from legation.wire.acp.sessions import SessionSetup
from legation.wire.events import Draft
from legation.wire.lifecycle import SetupFacts


def setup_facts(setup: SessionSetup) -> list[Draft]:
    """None where there are none. Options of a form that nobody knows are written as they came."""
    facts: dict[str, object] = {}
    if setup.modes is not None:
        facts["modes"] = setup.modes
    if setup.config_options is not None:
        facts["configOptions"] = [
            each.value if isinstance(each, Unread) else each for each in setup.config_options
        ]
    return [Draft(SetupFacts.event_type(), jsontext.write(facts))] if facts else []
