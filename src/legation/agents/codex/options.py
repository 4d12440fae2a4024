"""Options of a session of Codex: the mode, the model, how hard it thinks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from legation.agents.codex.messages import CodexModel, Mode, ModeSettings
from legation.errors import InvalidParams
from legation.wire.acp.updates import ConfigOption, SelectChoice, SelectOption, SessionMode, SessionModeState

DEFAULT: Final = "default"
PLAN: Final = "plan"
MODEL: Final = "model"
EFFORT: Final = "reasoning_effort"

_MODES: Final = (
    SessionMode(id=DEFAULT, name="Default", description="Works, and asks before each step"),
    SessionMode(id=PLAN, name="Plan", description="Looks around and proposes a plan"),
)


@dataclass(frozen=True, slots=True)
class CodexOptions:
    """`effort` None is the model's own."""

    model: str
    effort: str | None = None
    mode: str = DEFAULT

    def in_mode(self, mode: str) -> CodexOptions:
        if mode not in (DEFAULT, PLAN):
            raise InvalidParams(f"cannot choose mode {mode!r}: Codex has {DEFAULT} and {PLAN}")
        return replace(self, mode=mode)

    def with_option(self, option: str, value: str | bool, models: tuple[CodexModel, ...]) -> CodexOptions:
        if option not in (MODEL, EFFORT) or not isinstance(value, str):
            raise InvalidParams(f"cannot set {option!r}: the session has {MODEL} and {EFFORT}")
        if option == MODEL:
            kept = self.effort if self.effort in _efforts(value, models) else None
            return replace(self, model=value, effort=kept)
        if value not in _efforts(self.model, models):
            raise InvalidParams("cannot choose that reasoning effort: the model has it not")
        return replace(self, effort=value)

    def modes(self) -> SessionModeState:
        return SessionModeState(current_mode_id=self.mode, available_modes=_MODES)

    def options(self, models: tuple[CodexModel, ...]) -> tuple[ConfigOption, ...]:
        """A model that is in no list stays to be chosen."""
        listed = [
            SelectChoice(value=each.model, name=each.display_name, description=each.description)
            for each in models
            if not each.hidden or each.model == self.model
        ]
        if self.model not in [each.value for each in listed]:
            listed.append(SelectChoice(value=self.model, name=self.model))
        chosen = SelectOption(
            id=MODEL, name="Model", category="model", current_value=self.model, options=tuple(listed)
        )
        efforts = _efforts(self.model, models)
        if not efforts:
            return (chosen,)
        current = self.effort or next(e.default_reasoning_effort for e in models if e.model == self.model)
        return chosen, SelectOption(
            id=EFFORT,
            name="Reasoning effort",
            category="thought_level",
            current_value=current,
            options=tuple(
                SelectChoice(value=value, name=value, description=about) for value, about in efforts.items()
            ),
        )

    def native(self) -> Mode:
        return Mode(mode=self.mode, settings=ModeSettings(model=self.model, reasoning_effort=self.effort))


def _efforts(model: str, models: tuple[CodexModel, ...]) -> dict[str, str]:
    for each in models:
        if each.model == model:
            return {way.reasoning_effort: way.description for way in each.supported_reasoning_efforts}
    return {}
