"""`legation agents`: which agents there are, and getting them to work here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import App, Parameter

from legation.agents.catalogue import Catalogue, LocalAgent
from legation.cli.command import (
    Json,
    LocalFlags,
    Style,
    line,
    say,
    say_json,
    say_verdict,
    settings_of,
    show,
    tell,
)
from legation.errors import STATUS, Code, InvalidParams, NotFound

if TYPE_CHECKING:
    from legation.agents.catalogue.entries import CatalogueEntry
    from legation.agents.catalogue.options import Source
    from legation.agents.install.lock import OfferedChoice

app = App(
    name="agents",
    help="Agents: list, install, verify, sign in, look for faults, ask what they offer.",
    help_epilogue="Begin with `legation agents`, then `legation agents install NAME`. An agent of your own is a stanza in"
    ' agents.toml in the data folder: [agents.mine] and below it command = "my-agent --acp".',
)

Workspace = Annotated[str, Parameter(help="Whose home it signs in to, by id.")]
Again = Annotated[bool, Parameter(negative="", help="Ask the agent itself, though it was asked before.")]
_STYLES: dict[str, Style] = {"ok": "green", "absent": "dim", "broken": "red"}
_SAYS: Final[dict[Source, str]] = {
    "asked": "asked of the agent just now",
    "kept": "as the agent said before; --again asks it anew",
    "lock": "as known when this Legation was made",
}


def catalogue_of(settings: LocalFlags | None) -> Catalogue:
    chosen = settings_of(settings)
    return Catalogue(chosen.data_dir, custom_file=chosen.agents)


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: LocalFlags | None = None) -> None:
    """List the agents that Legation knows, and where each is on this machine."""
    columns = {
        "name": lambda agent: agent.name,
        "agent": lambda agent: agent.title,
        "found": lambda agent: agent.how,
        "version": _version,
        "sign-in": lambda agent: agent.sign_in,
        "next": _next,
    }
    show(catalogue_of(settings).agents(), columns, json=json, if_empty="no agents")


def _version(agent: LocalAgent) -> str | None:
    return f"{agent.version} ({agent.wanted} is locked)" if agent.outdated else agent.version


def _next(agent: LocalAgent) -> str | None:
    if agent.how is None:
        return f"legation agents install {agent.name}" if agent.wanted else agent.problem
    if agent.problem:
        return agent.problem
    if agent.outdated:
        return f"legation agents install {agent.name}"
    return f"legation agents login {agent.name}" if agent.sign_in == "signed out" else None


@app.command
def install(
    name: str,
    /,
    *,
    version: Annotated[str | None, Parameter(help="Which, of those in the lock; else the first.")] = None,
    again: Annotated[bool, Parameter(negative="", help="Also if it is there.")] = False,
    json: Json = False,
    settings: LocalFlags | None = None,
) -> None:
    """Fetch an agent from npm's registry into the data folder. Afterwards it needs no network to start.

    Only packages named in Legation's lock are taken, each checked against its hash before it is unpacked. No
    script of a package is run. Where they come from is npm's setting.
    """
    from legation.cli.backup import ProgressLine

    catalogue = catalogue_of(settings)
    entry = catalogue.entry(name)
    with ProgressLine(entry.name, sys.stderr, then="unpacking") as progress:
        found = catalogue.install(name, version, progress=progress, again=again)
    agent = catalogue.agent(name)
    if json:
        say_json(agent)
    elif found is None:
        say(f"{entry.name} is part of Legation; there is nothing to install")
    else:
        say(f"{entry.name} {found.version} is installed", "green")
        if following := _next(agent):
            say(f"next: {following}", "bold")


@app.command
def uninstall(name: str, /, *, json: Json = False, settings: LocalFlags | None = None) -> None:
    """Remove what was installed of an agent. Its home, with sign-in and sessions, stays."""
    catalogue = catalogue_of(settings)
    entry = catalogue.entry(name)
    versions = catalogue.uninstall(entry.name)
    if not versions:
        raise NotFound(f"cannot uninstall {entry.name}: it is not installed; see `legation agents`")
    value = {"agent": entry.name, "removed": versions}
    tell(value, f"removed {entry.name} {', '.join(versions)}", json=json)


@app.command
def verify(
    name: Annotated[str | None, Parameter(help="Which agent. Without it, all that are installed.")] = None,
    /,
    *,
    json: Json = False,
    settings: LocalFlags | None = None,
) -> int:
    """Compare every installed file with the lock. The exit code is 1 if one differs."""
    catalogue, good = catalogue_of(settings), True
    # Agents that share an installation are one of it.
    names = [catalogue.entry(name).name] if name else {entry.package for entry in catalogue.entries()}
    found = [each for known in sorted(names) for each in catalogue.verify(known)]
    if name and not found:
        raise NotFound(f"cannot verify {name}: {_why_not_verified(catalogue.entry(name))}")
    for each in found:
        good &= each.good
        if json:
            say_json(each)
            continue
        said = "as locked" if each.good else f"{len(each.problems)} problem(s)"
        say(
            f"{each.agent} {each.version}: {each.files} files, {each.bytes // 2**20} MiB, {said}",
            "green" if each.good else "red",
        )
        for problem in each.problems:
            say(f"    {line(problem)}")
        if not each.good:
            say(f"    next: legation agents install {each.agent} --again", "bold")
    if not found and not json:
        say("no agents are installed; see `legation agents`", "dim")
    return 0 if good else STATUS[Code.INTERNAL].exit


def _why_not_verified(entry: CatalogueEntry) -> str:
    match entry.origin:
        case "built in":
            return f"it ships with Legation, and nothing is installed of it; try it with `legation agents doctor {entry.name}`"
        case "custom":
            return f"it is your own, and no lock has its files; try it with `legation agents doctor {entry.name}`"
        case "known":
            return f"it is not installed; get it with `legation agents install {entry.name}`"


@app.command
def doctor(
    name: Annotated[str | None, Parameter(help="Which agent. Without it, all.")] = None,
    /,
    *,
    json: Json = False,
    settings: LocalFlags | None = None,
) -> int:
    """Start an agent, greet it and end it, in a clean place. The exit code is 1 if one that is here fails.

    It gets a new home, no variables of yours, and a key that is none: nothing is spent, nobody is reached.
    """
    import asyncio

    from legation.agents.catalogue.probe import examine

    catalogue, broken = catalogue_of(settings), False
    for known in [catalogue.entry(name).name] if name else catalogue.names():
        health = asyncio.run(examine(catalogue, known))
        broken |= health.verdict == "broken" or (health.verdict == "absent" and name is not None)
        if json:
            say_json(health)
            continue
        text = f"{health.agent}: {line(health.says)}"
        say_verdict(health.verdict, _STYLES[health.verdict], text, health.next)
    return STATUS[Code.INTERNAL].exit if broken else 0


@app.command
def login(name: str, /, *, workspace: Workspace = "local", settings: LocalFlags | None = None) -> int:
    """Sign in to an agent, with the agent's own dialog, in the home that Legation keeps for it.

    Your own HOME is not touched. The exit code is the agent's.
    """
    from legation.agents.catalogue.probe import login as sign_in

    catalogue = catalogue_of(settings)
    entry = catalogue.entry(name)
    if catalogue.sign_in(name) and not sys.stdin.isatty():
        raise InvalidParams(f"cannot sign in to {entry.name} without a terminal; run this in one")
    if entry.sign_in and entry.sign_in.hint:
        print(f"legation: {entry.sign_in.hint}", file=sys.stderr)
    return sign_in(catalogue, name, workspace=workspace)


@app.command
def models(
    name: str, /, *, again: Again = False, json: Json = False, settings: LocalFlags | None = None
) -> None:
    """List the models that an agent offers, and say who says so. An account may have more, or fewer."""
    _show_options(settings, name, "models", again=again, json=json)


@app.command
def modes(
    name: str, /, *, again: Again = False, json: Json = False, settings: LocalFlags | None = None
) -> None:
    """List the modes that an agent can work in, and say who says so."""
    _show_options(settings, name, "modes", again=again, json=json)


def _show_options(
    settings: LocalFlags | None, name: str, what: Literal["modes", "models"], *, again: bool, json: bool
) -> None:
    import asyncio

    from legation.agents.catalogue.options import options_of

    found = asyncio.run(options_of(catalogue_of(settings), name, again=again))
    choices, default = (
        (found.modes, found.default_mode) if what == "modes" else (found.models, found.default_model)
    )
    if json:
        head = {"agent": found.agent, "source": found.source, what: choices, "default": default}
        variants = {"variants": found.variants, "default_variant": found.default_variant}
        say_json({**head, **(variants if what == "models" else {}), "problem": found.problem})
        return
    columns = {
        "id": lambda choice: _id(choice, default),
        "name": lambda choice: choice.name,
        "description": lambda choice: choice.description,
    }
    show(choices, columns, json=False, if_empty=f"{found.agent} names no {what}")
    if what == "models" and found.variants:
        names = ", ".join(line(_id(each, found.default_variant)) for each in found.variants)
        say(f"variants of {line(found.default_model or 'the default model')}: {names}")
    say(_SAYS[found.source], "dim")
    if found.problem:
        say(f"it could not be asked: {line(found.problem)}", "yellow")


def _id(choice: OfferedChoice, default: str | None) -> str:
    return f"{choice.id} (default)" if choice.id == default else choice.id
