"""`legation run`: submit a durable run, and follow it to its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from legation.cli.command import (
    Console,
    Json,
    PlaceFlags,
    connect,
    line,
    say_json,
    server_path,
    tell,
)
from legation.errors import InvalidParams

if TYPE_CHECKING:
    from legation.client.http import Caller
    from legation.client.runs import ClientRun
    from legation.secret import Secret


def run(
    task: Annotated[str | None, Parameter(help="What to do. Without it, standard input is read.")] = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(help="Its name, as `legation agents` lists it.")] = None,
    repo: Annotated[
        str | None,
        Parameter(
            help="Where it works: a folder of the server's machine, or the address of a repository to clone."
        ),
    ] = None,
    model: Annotated[str | None, Parameter(help="As `legation agents models` lists them.")] = None,
    template: Annotated[str | None, Parameter(help="A template, by id or hash, instead of a task.")] = None,
    var: Annotated[
        tuple[str, ...], Parameter(help="NAME=VALUE for {{NAME}}; may be given several times.", negative="")
    ] = (),
    env: Annotated[
        tuple[str, ...], Parameter(help="NAME=VALUE for the agent's environment; no secrets.", negative="")
    ] = (),
    key_file: Annotated[str | None, Parameter(help="A file with the key of the agent's provider.")] = None,
    timeout: Annotated[
        float | None, Parameter(help="Seconds that the run may take, its waits included.")
    ] = None,
    detach: Annotated[bool, Parameter(negative="", help="Submit it, and do not wait.")] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Submit a run that survives restarts of everything, and follow it to its end.

    The key of the agent's provider is taken from this environment, or from --key-file; it is sealed for this run alone. The exit
    code is 0 where the run succeeded, 1 where it ended otherwise. Ctrl-C cancels it; twice, it only stops following.
    """
    from legation.wire.api.runs import RunEnvironment, RunTimeouts

    given: dict[str, Any] = {"variables": _pairs(var, "--var")}
    if template is not None:
        if task is not None or agent is not None:
            raise InvalidParams("cannot run a template and a task; leave out one or the other")
        given |= {"template": template}
    else:
        if agent is None:
            raise InvalidParams(
                "cannot run without an agent; name one with --agent, as `legation agents` lists them"
            )
        given |= {"agent": agent, "prompt": task if task is not None else piped(), "workspace": _place(repo)}
        given |= {"model": model, "environment": RunEnvironment(env_vars=_pairs(env, "--env"))}
        given |= {"timeouts": None if timeout is None else RunTimeouts(run=timeout)}
    with connect(settings) as server:
        named = agent
        if template is not None:
            import msgspec

            named = msgspec.json.decode(server.templates.get(template).run)["agent"]
        submitted = server.run(**given, keys=keys_for(named, key_file))
        if detach:
            return _left(submitted, json=json)
    return _followed(submitted.id, json=json, settings=settings)


def _left(submitted: ClientRun[Caller], *, json: bool) -> int:
    info = submitted.info()
    tell(info, line(info.id), json=json)
    if info.notice and not json:
        print(f"legation: {line(info.notice)}", file=sys.stderr)
    return 0


def _followed(run_id: str, *, json: bool, settings: PlaceFlags | None) -> int:
    from legation.cli.runs import exit_code, follow_run, show_changes

    out = Console()
    if not json:
        out.say(line(run_id), "dim")
    ended = follow_run(settings, run_id, 0, json=json, cancels=True)
    if json:
        say_json(ended)
        return exit_code(ended)
    with connect(settings) as server:
        show_changes(server.runs.get(run_id).changes())
    return exit_code(ended)


def keys_for(agent: str | None, key_file: str | None) -> dict[str, Secret]:
    """Find the key of an agent's provider, here: a sign-in is never used for runs, and told so."""
    from legation.agents.catalogue.entries import KNOWN
    from legation.runs.submit import providers_of
    from legation.secret import Secret

    entry = next((each for each in KNOWN if agent in (each.name, *each.aliases)), None)
    if entry is None:
        # The owner's own: which variable it reads is in a file of the server's.
        return {} if key_file is None else {"custom": Secret(_read_key(key_file), "custom")}
    wanted = providers_of(entry)
    if not wanted:
        if key_file is not None:
            raise InvalidParams(f"cannot send a key to {entry.name}, which needs none; leave out --key-file")
        return {}
    if key_file is not None:
        provider = next(iter(wanted))
        return {provider: Secret(_read_key(key_file), provider)}
    for provider, variable in wanted.items():
        names = [variable, *(name for name, read in entry.synonyms.items() if read == variable)]
        if value := next((os.environ[name] for name in names if os.environ.get(name)), None):
            return {provider: Secret(value, provider)}
    raise InvalidParams(
        f"cannot run {entry.name} without a key: set {' or '.join(wanted.values())}, or give --key-file; being signed in does "
        "not count for runs"
    )


def _read_key(path: str) -> str:
    try:
        key = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidParams(
            f"cannot read the key in {line(path)}; name a file of text that holds it alone"
        ) from None
    if not key:
        raise InvalidParams(f"cannot find a key in {line(path)}: the file is empty; put the key into it")
    return key


def _place(repo: str | None) -> object:
    from legation.wire.api.runs import FolderPlace, GitPlace

    if repo is None:
        return None
    if "://" in repo or repo.startswith("git@"):
        return GitPlace(url=repo)
    return FolderPlace(path=server_path(Path(repo)))


def _pairs(given: tuple[str, ...], flag: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, is_set, _ in pairs if not (name and is_set)]:
        raise InvalidParams(f"cannot read {flag} {line(wrong[0])}; write it as NAME=VALUE")
    return {name: value for name, _, value in pairs}


def piped() -> str:
    """Read what is to be said from standard input."""
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise InvalidParams("cannot run without a task; say what to do, or pipe it to standard input")
    return text
