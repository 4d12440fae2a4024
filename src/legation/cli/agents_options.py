"""What an agent offers, for `legation agents models` and `modes`."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from legation.agents.catalogue import Catalogue
from legation.agents.catalogue.options import Options, Source, options_of
from legation.agents.install.lock import Choice
from legation.cli.table import say_json, show
from legation.cli.terminal import Terminal, line

_SAYS: Final[dict[Source, str]] = {
    "asked": "asked of the agent just now",
    "kept": "as the agent said before; --again asks it anew",
    "lock": "as known when this Legation was made",
}


def show_options(
    catalogue: Catalogue, name: str, what: Literal["modes", "models"], *, again: bool, json: bool
) -> int:
    found = asyncio.run(options_of(catalogue, name, again=again))
    if json:
        say_json(_as_json(found, what))
        return 0
    choices, default = (
        (found.modes, found.default_mode) if what == "modes" else (found.models, found.default_model)
    )
    columns = {
        "id": lambda choice: _id(choice, default),
        "name": lambda choice: choice.name,
        "description": lambda choice: choice.description,
    }
    show(choices, columns, json=False, if_empty=f"{found.agent} names no {what}")
    out = Terminal()
    if what == "models" and found.variants:
        names = ", ".join(line(_id(each, found.default_variant)) for each in found.variants)
        out.say(f"variants of {line(found.default_model or 'the default model')}: {names}")
    out.say(_SAYS[found.source], "dim")
    if found.problem:
        out.say(f"it could not be asked: {line(found.problem)}", "yellow")
    return 0


def _id(choice: Choice, default: str | None) -> str:
    return f"{choice.id} (default)" if choice.id == default else choice.id


def _as_json(found: Options, what: Literal["modes", "models"]) -> dict[str, object]:
    choices, default = (
        (found.modes, found.default_mode) if what == "modes" else (found.models, found.default_model)
    )
    variants = (
        {"variants": found.variants, "default_variant": found.default_variant} if what == "models" else {}
    )
    return {
        "agent": found.agent,
        "source": found.source,
        what: choices,
        "default": default,
        **variants,
        "problem": found.problem,
    }
