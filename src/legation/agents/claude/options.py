"""Options of a session of Claude Code: mode, model, effort. Modes in which it would decide for itself are not among it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from legation.agents.claude.messages import ClaudeShape, SlashCommand
from legation.agents.messages import READ_ERRORS, fit
from legation.errors import InvalidParams
from legation.wire.acp.updates import ConfigOption, SelectChoice, SelectOption, SessionMode, SessionModeState

DEFAULT: Final = "default"
PLAN: Final = "plan"
MODEL: Final = "model"
EFFORT: Final = "effort"
_MODES: Final = (
    SessionMode(id=DEFAULT, name="Default", description="Asks before every call of a tool"),
    SessionMode(id=PLAN, name="Plan", description="Plans, and asks before it begins to work"),
)


class ClaudeModel(ClaudeShape):
    value: str
    displayName: str = ""  # noqa: N815 - spelt as on the wire
    description: str = ""
    supportedEffortLevels: tuple[str, ...] = ()  # noqa: N815


class Greeting(ClaudeShape):
    """The answer to `initialize`."""

    models: tuple[ClaudeModel, ...] = ()
    commands: tuple[SlashCommand, ...] = ()
    hooks_applied: bool | None = None


def read_greeting(given: Mapping[str, object]) -> Greeting:
    try:
        return fit(dict(given), Greeting)
    except READ_ERRORS:
        return Greeting()


@dataclass(slots=True)
class ClaudeOptions:
    """Models as the program listed them, and what was chosen."""

    models: tuple[ClaudeModel, ...] = ()
    chosen: dict[str, str] = field(default_factory=lambda: {MODEL: DEFAULT, EFFORT: DEFAULT})

    def modes(self) -> SessionModeState:
        return SessionModeState(current_mode_id=DEFAULT, available_modes=_MODES)

    def options(self) -> tuple[ConfigOption, ...]:
        return tuple(
            SelectOption(
                id=name,
                name=name.capitalize(),
                category="model" if name == MODEL else "thought_level",
                current_value=self.chosen[name],
                options=choices,
            )
            for name in (MODEL, EFFORT)
            if (choices := self._choices(name))
        )

    def request_for(self, option: str, value: str | bool) -> Mapping[str, object]:
        """Make the request that sets it; raises for what is not offered."""
        if value not in [choice.value for choice in self._choices(option)]:
            raise InvalidParams(
                f"cannot set {option!r} of Claude Code to {value!r}: choose from what the session offers"
            )
        chosen = None if value == DEFAULT else value
        if option == MODEL:
            return {"subtype": "set_model", "model": chosen}
        return {"subtype": "apply_flag_settings", "settings": {"effortLevel": chosen}}

    def choose(self, option: str, value: str) -> None:
        self.chosen[option] = value

    def mode_request(self, mode: str) -> Mapping[str, object]:
        if mode not in [each.id for each in _MODES]:
            raise InvalidParams(
                f"cannot set mode {mode!r} of Claude Code: it offers default and plan; choose one of those"
            )
        return {"subtype": "set_permission_mode", "mode": mode}

    def _choices(self, option: str) -> tuple[SelectChoice, ...]:
        if option == MODEL:
            return tuple(
                SelectChoice(
                    name=each.displayName or each.value,
                    value=each.value,
                    description=each.description or None,
                )
                for each in self.models
            )
        if option == EFFORT and (levels := self._levels()):
            return tuple(SelectChoice(name=level.capitalize(), value=level) for level in (DEFAULT, *levels))
        return ()

    def _levels(self) -> tuple[str, ...]:
        model = next((each for each in self.models if each.value == self.chosen[MODEL]), None)
        return model.supportedEffortLevels if model else ()
