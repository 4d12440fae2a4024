"""Choices that an agent offers itself, its modes and options (`Offers`); in some of them it asks before it acts.

INV-C1  No mode is chosen in which the agent decides for itself: policies would no longer be asked. One that begins in
        such a mode, or comes back in it, is put into one in which it asks before anybody says anything to it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import msgspec

from legation.agents.driver import AskingModes, Driver
from legation.errors import AgentExited, Forbidden, InvalidParams, LegationError, TransportClosed
from legation.wire import event_types, jsontext
from legation.wire.acp.methods import SessionSetup
from legation.wire.acp.updates import (
    BooleanOption,
    ConfigOption,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    SelectChoice,
    SelectOption,
    SessionModeState,
    Unread,
)
from legation.wire.event_types import SetupFacts
from legation.wire.events import Draft

Setup = TypeVar("Setup", bound=SessionSetup)

OFFER_TYPES = frozenset(("current-mode-update", "config-option-update"))


class Offers(msgspec.Struct, frozen=True):
    """Modes and options, as they are now."""

    modes: SessionModeState | None = None
    options: tuple[ConfigOption, ...] = ()

    @classmethod
    def of(cls, setup: SessionSetup) -> Offers:
        return cls(setup.modes, setup.config_options or ())

    def after(self, draft: Draft) -> Offers:
        """The agent said what is chosen now."""
        match event_types.decode(draft):
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
        """Return the agent's answer with what is chosen now."""
        return msgspec.structs.replace(
            setup, modes=self.modes or setup.modes, config_options=self.options or setup.config_options
        )

    def news_for(self, known: Offers) -> SessionSetup | None:
        """Return what whoever knows the other has not heard."""
        if self == known:
            return None
        return SessionSetup(
            modes=self.modes if self.modes != known.modes else None,
            config_options=self.options if self.options != known.options else None,
        )


def setup_facts(setup: SessionSetup) -> list[Draft]:
    """Return what an agent answers when it takes a session as an event of our own; unknown options as they came."""
    facts: dict[str, object] = {}
    if setup.modes is not None:
        facts["modes"] = setup.modes
    if setup.config_options is not None:
        facts["configOptions"] = [
            each.value if isinstance(each, Unread) else each for each in setup.config_options
        ]
    return [Draft(SetupFacts.event_type(), jsontext.write(facts))] if facts else []


_LONGEST: Final = 1000  # characters of a name that are looked at
SHOWN: Final = 20  # names in a message that says what there is
# Modes of agents in which they do not ask, or not about all, in lower case without what stands between words.
_UNASKING: Final = re.compile(
    "acceptall|acceptedits|agentfullaccess|allowall|alwaysallow|alwaysapprove|approveall|auto|autoedit|"
    "autohigh|autolow|automedium|autonomous|autopilot|autorun|dangerfullaccess|dontask|fullaccess|"
    "fullauto|never|neverask|smartapprove|"
    # So they begin whatever follows: `bypassApprovals`, `Auto-approve everything`.
    "(?:autoaccept|autoapprove|bypass|dangerous|skippermission|yolo).*"
)
_ABOUT_ASKING: Final = ("approval", "permission")  # in the names of options that amount to a mode
# Modes in which agents ask and work, the likeliest first; then those in which they do no work at all.
_ASKING: Final = (
    *("default", "ask", "alwaysask", "normal", "manual", "approve"),
    *("suggest", "interactive", "build", "code", "agent"),
)
_IDLE: Final = frozenset(("readonly", "plan", "chat", "architect"))

Choices = list[tuple[str, str]]
"""Of each mode, what the agent calls it and what people see."""


class Setting(Protocol):
    """An agent's session that can be set."""

    @property
    def offers(self) -> Offers: ...
    async def set_mode(self, mode: str) -> None: ...
    async def set_option(self, option: str, value: str | bool) -> object: ...


class OpenedSession:
    """A session that the agent has opened and nobody knows of yet. `limit` is the agent's time for each answer."""

    def __init__(
        self, agent: Driver, session_id: str, offers: Offers, limit: float, known: AskingModes | None = None
    ) -> None:
        self.offers = offers
        self._known = known or AskingModes()
        self._agent, self._session_id, self._limit = agent, session_id, limit

    async def set_mode(self, mode: str) -> None:
        must_stay_asking(self.offers, self._known, mode)
        await self._agent.set_mode(self._session_id, mode, self._limit)
        self.offers = self.offers.in_mode(mode)

    async def set_option(self, option: str, value: str | bool) -> None:
        must_stay_asking(self.offers, self._known, value, option)
        answer = await self._agent.set_config_option(self._session_id, option, value, self._limit)
        self.offers = self.offers.with_options(answer.config_options)


@dataclass(frozen=True, slots=True)
class Put:
    """A mode in which the agent does not ask, and the one that it was put into; None: it could not be, for `why`."""

    mode: str
    into: str | None
    why: str | None = None


# Names.


def asks(mode: str, known: AskingModes | None = None) -> bool:
    """Tell by its name whether the agent asks in it. What the catalogue says of the agent counts more."""
    name = _plain(mode)
    if known is not None and name in map(_plain, known.asking):
        return True
    if known is not None and name in map(_plain, known.unasking):
        return False
    return _UNASKING.fullmatch(name) is None


def must_ask(
    mode: str, known: AskingModes | None = None, shown: str | None = None, advice: str | None = None
) -> None:
    """INV-C1. `shown` is the name that people see."""
    if not _asks(mode, shown, known or AskingModes()):
        raise Forbidden(
            f"cannot choose mode {mode!r}: in it the agent does not ask, and no policy would be heard; "
            + (advice or "use permissionMode acceptEdits or bypass"),
            {"type": "permission_denied"},
        )


def must_stay_asking(
    offers: Offers, known: AskingModes, value: str | bool, option: str | None = None
) -> None:
    """INV-C1, of a mode or of the value of an option."""
    if option is None:
        must_ask(str(value), known, dict(offered_modes(offers)).get(str(value)))
        return
    choice = next((each for each in _mode_options(offers) if each.id == option), None)
    if choice is not None:
        must_ask(str(value), known, dict(flat(choice.options)).get(str(value)))
    elif value is True:
        switch = next(
            (each for each in offers.options if isinstance(each, BooleanOption) and each.id == option), None
        )
        must_ask(option, known, switch.name if switch else None)


def _plain(mode: str) -> str:
    """Reduce a name to what is read: neither case, accents, wide letters nor a trailing `mode` make another of it."""
    return _plain_of(mode[:_LONGEST])


@lru_cache(1024)  # an agent may offer thousands, and each is held against the same names
def _plain_of(mode: str) -> str:
    letters = unicodedata.normalize("NFKD", mode).lower()
    name = "".join(each for each in letters if each.isalnum())
    return name.removesuffix("mode") or name


# What an agent offers.


def current_mode(offers: Offers) -> str | None:
    if offers.modes is not None:
        return offers.modes.current_mode_id
    option = offers.choice("mode")
    return option.current_value if option else None


def offered_modes(offers: Offers) -> Choices:
    if offers.modes is not None:
        return [(each.id, each.name) for each in offers.modes.available_modes]
    option = offers.choice("mode")
    return list(flat(option.options)) if option else []


def _mode_options(offers: Offers) -> list[SelectOption]:
    """Return all options that amount to a mode: some agents have their approvals apart from their modes."""
    selects = [each for each in offers.options if isinstance(each, SelectOption)]
    chosen = offers.choice("mode")
    return [
        each
        for each in selects
        if each.category == "mode"
        or each is chosen
        or any(word in _plain(name) for word in _ABOUT_ASKING for name in (each.id, each.name))
    ]


def flat(choices: Iterable[SelectChoice]) -> Iterator[tuple[str, str]]:
    for each in choices:
        if each.value is not None:
            yield each.value, each.name
        yield from flat(each.options)


def match(name: str, offered: Iterable[tuple[str, str]]) -> str | None:
    """Find it by its id, else by the name that people see."""
    offered = list(offered)
    for value, _ in offered:
        if value == name:
            return value
    lower = name.lower()
    return next((value for value, shown in offered if lower in (value.lower(), shown.lower())), None)


# Choosing.


def unasking_mode(offers: Offers, known: AskingModes) -> str | None:
    """The mode that it is in, if it does not ask in it: by ACP's modes, an option of that kind, or a switch."""
    return next((current for current, _, _ in _unasking(offers, known)), None)


async def put_into_asking(session: Setting, known: AskingModes) -> list[Put]:
    """Put it where it asks, whatever it is in, or the outcome says that it could not be brought to."""
    done: dict[Put, None] = {}  # many agents offer their modes as an option as well: told once
    for current, offered, option in _unasking(session.offers, known):
        wanted = False if offered is None else _best(offered, known)
        if wanted is None:
            done[Put(current, None, "the agent offers no mode in which it asks")] = None
            continue
        try:
            if option is not None:
                await session.set_option(option, wanted)
            else:
                await session.set_mode(str(wanted))
        except (AgentExited, TransportClosed):
            raise
        except LegationError as error:
            done[Put(current, None, error.message)] = None
        else:
            done[Put(current, f"{option} off" if wanted is False else str(wanted))] = None
    return list(done)


async def choose_mode(session: Setting, name: str, known: AskingModes) -> None:
    """The one of that name. INV-C1."""
    advice = "choose another, or let a policy allow what it may do"
    offered = offered_modes(session.offers)
    value = match(name, offered)
    must_ask(value or name, known, dict(offered).get(value or ""), advice)
    if value is None:
        names = [each for each, shown in offered if _asks(each, shown, known)][:SHOWN]
        raise InvalidParams(
            f"cannot choose mode {name!r}: "
            + (f"choose from {', '.join(names)}" if names else "the agent offers none; leave it out")
        )
    await go_to_mode(session, value)


async def go_to_mode(session: Setting, mode: str) -> None:
    """Set the mode, by the option where an agent has its modes as one; an agent without modes is left as it is."""
    option = session.offers.choice("mode") if session.offers.modes is None else None
    if mode == current_mode(session.offers):
        return
    if option is not None:
        await session.set_option(option.id, mode)
    elif session.offers.modes is not None:
        await session.set_mode(mode)


def _unasking(offers: Offers, known: AskingModes) -> list[tuple[str, Choices | None, str | None]]:
    """Each place where it is set not to ask: the mode, what there is to choose (None: a switch), and the option."""
    found: list[tuple[str, Choices | None, str | None]] = []
    if known.left_alone:
        return found
    if offers.modes is not None:
        offered = [(each.id, each.name) for each in offers.modes.available_modes]
        current = offers.modes.current_mode_id
        if not _asks(current, dict(offered).get(current), known):
            found.append((current, offered, None))
    modes = set(map(id, _mode_options(offers)))
    for option in offers.options:
        if isinstance(option, SelectOption) and id(option) in modes:
            offered = list(flat(option.options))
            current = option.current_value
            if not _asks(current, dict(offered).get(current), known):
                found.append((current, offered, option.id))
        elif (
            isinstance(option, BooleanOption)
            and option.current_value
            and not _asks(option.id, option.name, known)
        ):
            found.append((option.id, None, option.id))
    return found


def _asks(mode: str, shown: str | None, known: AskingModes) -> bool:
    """Both its id and the name that people see: an agent may number its modes."""
    if asks(mode, known) and _plain(mode) in map(_plain, (*known.asking, *_ASKING, *_IDLE)):
        return True
    return asks(mode, known) and (shown is None or asks(shown, known))


def _best(offered: Choices, known: AskingModes) -> str | None:
    """The mode to be in: what the catalogue prefers, else one that works and asks by its name, else any that asks."""
    asking = [
        (value, {_plain(value), _plain(shown)}) for value, shown in offered if _asks(value, shown, known)
    ]
    for name in (*map(_plain, known.asking), *_ASKING):
        if found := next((value for value, names in asking if name in names), None):
            return found
    working = [value for value, names in asking if not names & _IDLE]
    return next(iter(working or [value for value, _ in asking]), None)
