"""Amp: what its help says. It publishes no schema; its stream is said to be compatible with Claude Code's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from legation.agents.schemas.asking import asking
from legation.agents.schemas.helptext import types_of
from legation.agents.schemas.inventory import Inventory, inventory
from legation.agents.schemas.places import Places
from legation.errors import AgentError

PROGRAM: Final = "@ampcode/cli-linux-*/amp"
_EMPTY: Final = {"object", "never"}  # a part of the help in which nothing was found


def find(places: Places) -> Path | None:
    return places.program([PROGRAM], "amp")


async def extract(program: Path) -> Inventory:
    async with asking("amp", program) as amp:
        version = (await amp.said("--version")).split()[0]
        types = types_of(await amp.said("--help"))
    found = inventory("amp", version, "@ampcode/cli: amp --help", types)
    if any(each in _EMPTY for each in found.definitions.values() if isinstance(each, str)):
        raise AgentError("cannot read the help of amp: it has another form now; helptext.py is to be changed")
    return found
