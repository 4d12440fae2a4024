"""Updates that are no part of the conversation, in a few words; what they say whole stands beside them."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from legation.wire.acp.config import BooleanOption, SelectOption
from legation.wire.acp.plan import Plan, PlanFile, PlanItems, PlanMarkdown, PlanRemoved, PlanUpdate
from legation.wire.acp.updates import (
    AvailableCommandsUpdate,
    CompactionUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    Notice,
    SessionInfoUpdate,
    UsageUpdate,
)
from legation.wire.lifecycle import (
    ExtensionAnswered,
    ExtensionMessage,
    SessionReset,
    SessionStatus,
    SetupFacts,
    UnaskingMode,
)
from legation.wire.universal.shapes import Status


def _plan(plan: Plan) -> Status:
    done = sum(entry.status == "completed" for entry in plan.entries)
    return Status("plan", f"{done} of {len(plan.entries)} done")


def _named_plan(update: PlanUpdate) -> Status:
    match update.plan:
        case PlanItems(plan_id=name, entries=entries):
            done = sum(entry.status == "completed" for entry in entries)
            return Status("plan", f"{name}: {done} of {len(entries)} done")
        case PlanFile(plan_id=name, uri=uri):
            return Status("plan", f"{name}: {uri}")
        case PlanMarkdown(plan_id=name, content=text):
            return Status("plan", f"{name}: {text}")
    return Status("plan", None)


def _commands(update: AvailableCommandsUpdate) -> Status:
    return Status("commands", ", ".join(command.name for command in update.available_commands))


def setup_words(facts: SetupFacts) -> list[Status]:
    words = [Status("mode", facts.modes.current_mode_id)] if facts.modes is not None else []
    return [*words, *([_config(facts)] if facts.config_options is not None else [])]


def _config(update: ConfigOptionUpdate | SetupFacts) -> Status:
    values = [
        f"{option.id}={option.current_value}"
        for option in update.config_options or ()
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
    PlanUpdate: _named_plan,
    PlanRemoved: lambda update: Status("plan", f"{update.plan_id}: removed"),
    AvailableCommandsUpdate: _commands,
    CurrentModeUpdate: lambda update: Status("mode", update.current_mode_id),
    ConfigOptionUpdate: _config,
    SessionInfoUpdate: _info,
    UsageUpdate: _usage,
    Notice: lambda notice: Status(f"{notice.severity}: {notice.title}", notice.description),
    CompactionUpdate: lambda update: Status("compaction", update.status),
    SessionStatus: _session,
    UnaskingMode: lambda found: Status("mode", f"{found.put_into}: in {found.mode} it would not ask"),
    ExtensionMessage: lambda sent: Status("extension", sent.method),
    ExtensionAnswered: lambda answered: Status("extension", f"{answered.method}: answered"),
    SessionReset: lambda reset: Status("session-reset", reset.reason),
}
