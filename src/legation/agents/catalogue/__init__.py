"""Agents by name: how each is started, and what is known of it on this machine."""

from __future__ import annotations

from legation.agents.catalogue.catalogue import Catalogue, LocalAgent, SignInState
from legation.agents.catalogue.entries import KNOWN, CatalogueEntry, Direct, Way
from legation.agents.catalogue.program import How, Start
from legation.errors import NotFound

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "How",
    "LocalAgent",
    "SignInState",
    "Start",
    "Way",
    "command_of",
    "names",
]


def names() -> tuple[str, ...]:
    """Names of the agents that Legation knows; a `Catalogue` also has the owner's own."""
    return tuple(entry.name for entry in KNOWN)


def command_of(name: str) -> tuple[str, ...]:
    """The command line of an agent that needs no installation."""
    for entry in KNOWN:
        program = entry.way.program
        if name in (entry.name, *entry.aliases) and isinstance(program, Direct):
            return program.argv
    built_in = ", ".join(entry.name for entry in KNOWN if entry.origin == "built in")
    raise NotFound(
        f"cannot find agent {name!r}; known are: {built_in}; any other ACP agent runs with --command"
    )
