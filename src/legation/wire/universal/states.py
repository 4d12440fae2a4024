"""Updates that are no part of the conversation, in a few words; what they say whole stands beside them."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from legation.wire.acp.config import BooleanOption, SelectOption
from legation.wire.acp.updates import (
    AvailableCommandsUpdate,
    CompactionUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    Notice,
    Plan,
    SessionInfoUpdate,
    UsageUpdate,
)
from legation.wire.lifecycle import SessionReset, SessionStatus, UnaskingMode
from legation.wire.universal.shapes import Status


def _plan(plan: Plan) -> Status:
    done = sum(entry.status == "completed" for entry in plan.entries)
    return Status("plan", f"{done} of {len(plan.entries)} done")


def _commands(update: AvailableCommandsUpdate) -> Status:
    return Status("commands", ", ".join(command.name for command in update.available_commands))


def _config(update: ConfigOptionUpdate) -> Status:
    values = [
        f"{option.id}={option.current_value}"
        for option in update.config_options
        if isinstance(option, SelectOption | BooleanOption)
    ]
    return Status("config", ", ".join(values))


def _info(update: SessionInfoUpdate) -> Status:
    return Status("title", update.title) if update.title is not UNSET else Status("session", None)


def _usage(update: UsageUpdate) -> Status:
    cost = f", {update.cost.amount:g} {update.cost.currency}" if update.cost else ""
    return Status("usage", f"{update.used} of {update.size} tokens{cost}")


def _session(status: SessionStatus) -> Status:
    return Status("session", f"{status.status}: {status.reason}" if status.reason else status.status)


STATES: Final[dict[type, Callable[[Any], Status]]] = {
    Plan: _plan,
    AvailableCommandsUpdate: _commands,
    CurrentModeUpdate: lambda update: Status("mode", update.current_mode_id),
    ConfigOptionUpdate: _config,
    SessionInfoUpdate: _info,
    UsageUpdate: _usage,
    Notice: lambda notice: Status(f"{notice.severity}: {notice.title}", notice.description),
    CompactionUpdate: lambda update: Status("compaction", update.status),
    SessionStatus: _session,
    UnaskingMode: lambda found: Status("mode", f"{found.put_into}: in {found.mode} it would not ask"),
    SessionReset: lambda reset: Status("session-reset", reset.reason),
}
