"""What the agent of a session said that can be chosen: its modes and options, as they are now."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from legation.wire import codec
from legation.wire.acp.config import ConfigOption, SelectOption, SessionModeState
from legation.wire.acp.sessions import SessionSetup
from legation.wire.acp.updates import ConfigOptionUpdate, CurrentModeUpdate
from legation.wire.events import Draft

Setup = TypeVar("Setup", bound=SessionSetup)

TYPES = frozenset(("current-mode-update", "config-option-update"))


class Offers(msgspec.Struct, frozen=True):
    modes: SessionModeState | None = None
    options: tuple[ConfigOption, ...] = ()

    @classmethod
    def of(cls, setup: SessionSetup) -> Offers:
        return cls(setup.modes, setup.config_options or ())

    def after(self, draft: Draft) -> Offers:
        """The agent said what is chosen now."""
        match codec.decode(draft):
            case CurrentModeUpdate(current_mode_id=mode):
                return self.in_mode(mode)
            case ConfigOptionUpdate(config_options=options):
                return self.with_options(options)
        return self

    def in_mode(self, mode: str) -> Offers:
        if self.modes is None:
            return self
        modes = msgspec.structs.replace(self.modes, current_mode_id=mode)
        return Offers(modes, self.options)

    def with_options(self, options: tuple[ConfigOption, ...]) -> Offers:
        return Offers(self.modes, options or self.options)

    def choice(self, category: str) -> SelectOption | None:
        """The option of that kind, by its category, else by its name."""
        selects = [each for each in self.options if isinstance(each, SelectOption)]
        by_category = (each for each in selects if each.category == category)
        by_name = (each for each in selects if each.id == category)
        return next(by_category, None) or next(by_name, None)

    def told_in(self, setup: Setup) -> Setup:
        """The same answer of the agent, with what is chosen now."""
        return msgspec.structs.replace(
            setup, modes=self.modes or setup.modes, config_options=self.options or setup.config_options
        )

    def news_for(self, known: Offers) -> SessionSetup | None:
        """What whoever knows the other has not heard."""
        if self == known:
            return None
        return SessionSetup(
            modes=self.modes if self.modes != known.modes else None,
            config_options=self.options if self.options != known.options else None,
        )
