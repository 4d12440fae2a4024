"""Options that a client asks for in its own words (a mode, a model, a variant), found among what the agent offers, and set.

INV-C1 of `agents/modes.py` holds: no mode is chosen in which the agent decides for itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from legation.agents.modes import (
    SHOWN,
    Offers,
    Setting,
    asks,
    current_mode,
    flat,
    go_to_mode,
    match,
    must_ask,
    offered_modes,
)
from legation.errors import CapabilityUnsupported, InvalidParams, LegationError
from legation.wire.acp.updates import VARIANT_CATEGORIES, SelectOption

if TYPE_CHECKING:
    from legation.host.session import Session
    from legation.server.sessions.record import Details

PLAN: Final = "plan"
BUILD: Final = "build"
# Whatever the agent's own configuration begins with, unless it offers a mode of that name.
CUSTOM: Final = "custom"
# How agents call planning, the closest first: codex-acp has no such mode, and in "read-only" it asks for every change.
_PLANS: Final = ("plan", "read-only")
# By which categories an agent's option is known, the closest first.
_CATEGORIES: Final = {"model": ("model",), "variant": VARIANT_CATEGORIES}

logger = logging.getLogger("legation.sessions")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Choices of a client; None: as it is. `first_mode` is what the agent was in when it began: its way to build."""

    mode: str | None = None
    model: str | None = None
    variant: str | None = None
    first_mode: str | None = None


async def set_again(session: Session, details: Details) -> None:
    """An agent may not remember; what it no longer offers must not keep the session from going on."""
    # One that builds is left as the agent has it.
    mode = Wanted(mode=None if details.mode == BUILD else details.mode, first_mode=details.first_mode)
    for each in (Wanted(model=details.model), Wanted(variant=details.variant), mode):
        try:
            await choose(session, each)
        except LegationError as error:
            logger.warning("session %s: %s", session.id, error.message)


async def choose(session: Setting, wanted: Wanted) -> None:
    """Set them, the model first: which variants there are may depend on it. What is surely not offered is refused
    before."""
    if wanted.mode is not None:
        _mode_of(session.offers, wanted.mode, wanted.first_mode)
    if wanted.variant is not None and wanted.model is None:
        _value_of(session.offers, wanted.variant, "variant")
    for what, name in (("model", wanted.model), ("variant", wanted.variant)):
        if name is not None:
            option, value = _value_of(session.offers, name, what)
            if value != option.current_value:
                await session.set_option(option.id, value)
    if wanted.mode is not None:
        await go_to_mode(session, _mode_of(session.offers, wanted.mode, wanted.first_mode))


def _option_of(offers: Offers, what: str) -> SelectOption | None:
    return next(filter(None, map(offers.choice, _CATEGORIES[what])), None)


def _value_of(offers: Offers, name: str, what: str) -> tuple[SelectOption, str]:
    option = _option_of(offers, what)
    if option is None:
        raise CapabilityUnsupported(
            f"cannot choose the {what}: the agent offers none; leave it out", {"type": "invalid_request"}
        )
    value = match(name, flat(option.options))
    if value is None:
        _refuse(what, [each for each, _ in flat(option.options)], "invalid_request")
    return option, value


def _mode_of(offers: Offers, name: str, first: str | None) -> str:
    """INV-C1."""
    current, offered = current_mode(offers) or "", offered_modes(offers)
    value = _mode(name, offered, first or current)
    if value is None:
        must_ask(name)  # what to use instead is the better advice, whether or not the agent names such a mode
        _refuse("mode", _mode_names(offered, first or current), "mode_not_supported")
    if value != current:
        must_ask(value)
    return value


def left_in(details: Details, offers: Offers) -> Details:
    """Note the mode that the agent has gone to by itself, unless it does not ask in it (INV-C1): one that was let out of
    its plan is not found planning again when it is started anew."""
    current, offered = current_mode(offers), offered_modes(offers)
    if current is None or not asks(current):
        return details
    first = details.first_mode or current
    if current == _mode(details.mode, offered, first):
        return details
    name = next((each for each in (BUILD, PLAN) if _mode(each, offered, first) == current), current)
    permissions = "default" if details.permission_mode == "plan" else details.permission_mode
    return replace(details, agent_mode=name, permission_mode=permissions)


def chosen_in(details: Details, offers: Offers, option_id: str) -> Details:
    """Note the model or variant that a client of ACP has chosen: it is chosen again of an agent that is started anew."""
    for what in _CATEGORIES:
        option = _option_of(offers, what)
        if option is not None and option.id == option_id:
            details = replace(details, **{what: option.current_value})
    return left_in(details, offers)


def _mode(name: str, offered: list[tuple[str, str]], first: str) -> str | None:
    """An agent without modes builds."""
    if name in (BUILD, CUSTOM):
        return match(name, offered) or first
    if name == PLAN:
        return next(filter(None, (match(each, offered) for each in _PLANS)), None)
    return match(name, offered)


def _mode_names(offered: list[tuple[str, str]], first: str) -> list[str]:
    """Return those that can be chosen, as `GET /v1/agents/{agent}/modes` lists them."""
    plan = [PLAN] if _mode(PLAN, offered, first) else []
    return [BUILD, *plan, *(each for each, _ in offered if asks(each) and each not in (BUILD, PLAN))]


def _refuse(what: str, there_is: list[str], type_: str) -> NoReturn:
    listed = ", ".join(there_is[:SHOWN]) + (", ..." if len(there_is) > SHOWN else "")
    advice = f"choose from {listed}" if there_is else "the agent offers none"
    raise InvalidParams(f"cannot choose that {what}: {advice}", {"type": type_, "offered": there_is[:SHOWN]})
