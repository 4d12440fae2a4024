"""What an agent answers when it takes a session, its modes and options, as the events it would send of them."""

from __future__ import annotations

from legation.wire import jsontext
from legation.wire.acp.content import Unread
from legation.wire.acp.sessions import SessionSetup
from legation.wire.events import Draft, update_type


def setup_events(setup: SessionSetup) -> list[Draft]:
    """ACP's update names only the mode that is chosen; those to choose from are added to it."""
    updates: list[dict[str, object]] = []
    if setup.modes is not None:
        modes = {
            "currentModeId": setup.modes.current_mode_id,
            "availableModes": setup.modes.available_modes,
        }
        updates.append({"sessionUpdate": "current_mode_update", **modes})
    if setup.config_options is not None:
        options = [each.value if isinstance(each, Unread) else each for each in setup.config_options]
        updates.append({"sessionUpdate": "config_option_update", "configOptions": options})
    return [Draft(update_type(raw), raw) for raw in map(jsontext.write, updates)]
