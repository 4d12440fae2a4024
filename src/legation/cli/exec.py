"""`legation exec`: one prompt in this process, with live output and the diff at the end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from legation.agents.catalogue import Catalogue
from legation.agents.catalogue.home import LOCAL
from legation.cli.approver import TerminalApprover, open_tty
from legation.cli.flags import SettingsFlags, settings_of
from legation.cli.folders import Folders
from legation.cli.terminal import Terminal, line, paint_diff
from legation.cli.turn import Done, Job, run_turn
from legation.cli.view import Screen, view_of
from legation.errors import STATUS, Code, InvalidParams
from legation.host.changes import Changes
from legation.host.launch import Launch, hide, launch_of
from legation.host.options import AgentDefinition
from legation.redact import Redactor
from legation.store.trust import TrustedFolders
from legation.wire.ask import ApproveAll, Approver, DenyAll


def exec_(
    prompt: str | None = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(help="A known agent, by name.")] = None,
    command: Annotated[str | None, Parameter(help="Any ACP agent, as a command line.")] = None,
    cwd: Annotated[Path, Parameter(help="The folder to work in.")] = Path(),
    mode: Annotated[
        str | None, Parameter(help="A mode of the agent's, like plan; none in which it does not ask.")
    ] = None,
    yes: Annotated[
        bool, Parameter(negative="", help="Approve what would be asked. What a rule denies stays denied.")
    ] = False,
    unattended: Annotated[bool, Parameter(negative="", help="Deny what would be asked.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print every event as one JSON line.")] = False,
    trust: Annotated[
        bool,
        Parameter(
            negative="",
            help="Let the folder's own agent configuration count, this time. See `legation trust`.",
        ),
    ] = False,
    env: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Pass NAME from this environment, or NAME=VALUE, to the agent."),
    ] = (),
    settings: SettingsFlags | None = None,
) -> int:
    """Run one prompt with an agent, here and now.

    The agent starts with a clean environment, its own key if that is set here, and a HOME of its own. What it asks is decided by rules: --policy, else
    the starter `careful`. What they leave to somebody is asked in the terminal; without a terminal it is denied. The
    session is recorded; see `legation events`. The exit code is 0 only when the agent ended its turn by itself.

    Parameters
    ----------
    prompt
        What to do. Without it, standard input is read.
    """
    name, chosen = _name(agent, command), settings_of(settings)
    folder, trusts = _folder(cwd), _trusts(chosen.data_dir, this_time=trust)
    if agent is not None:
        catalogue = Catalogue(chosen.data_dir, custom_file=chosen.agents, executes=True)
        entry, start = catalogue.entry(agent), catalogue.start(agent)
        launch = launch_of(catalogue, entry, start, folder, trusted=trusts(str(folder)))
    else:
        program, *args = _split(command or "")
        launch = Launch(AgentDefinition(id=name, command=program, args=tuple(args), cwd=folder))
    redactor = Redactor()
    hide(launch.keys, redactor)
    job = Job(
        definition=replace(launch.definition, env={**launch.definition.env, **_passed(env, os.environ)}),
        cwd=folder,
        prompt=_prompt(prompt),
        mode=mode,
        trusts=trusts,
        redact=redactor.bytes,
    )
    if yes and unattended:
        raise InvalidParams("cannot both approve and deny everything; give --yes or --unattended")
    person = _person(yes=yes, unattended=unattended)
    try:
        done = run_turn(job, chosen, Screen(view_of(json=json)), person)
        if not json:
            show_end(Terminal(), done)
    finally:  # also if the agent crashed, or was stopped: then it is wanted most
        if not json and Folders(chosen.data_dir).is_recorded(job.session_id):
            _say_where(job.session_id)
    return exit_code(done)


def show_end(out: Terminal, done: Done) -> None:
    out.say()
    show_changes(out, done.changes)


def _say_where(session_id: str) -> None:
    with suppress(OSError):  # an output that is gone: what is told of that, or of the crash, counts more
        Terminal().say(f"recorded as {session_id}; see it again with: legation events {session_id}", "dim")


def show_changes(out: Terminal, changes: Changes) -> None:
    if changes.files:
        paint_diff(out, changes.diff)
        for file in changes.files:
            if file.binary:
                out.say(f"{file.status}: {line(file.path)} (not text)", "dim")
        added, removed = (
            sum(file.added for file in changes.files),
            sum(file.removed for file in changes.files),
        )
        out.say(f"{len(changes.files)} file(s) changed, +{added} -{removed}", "bold")
    else:
        out.say("no file changed", "bold")
    if changes.incomplete:
        out.say(f"not shown: {line(changes.incomplete)}", "yellow")


def exit_code(done: Done) -> int:
    if done.result.error:
        return STATUS[Code.AGENT_ERROR].exit
    if done.result.stop_reason == "cancelled":
        return STATUS[Code.CANCELLED].exit
    return 0 if done.result.stop_reason == "end_turn" else STATUS[Code.AGENT_ERROR].exit


def _name(agent: str | None, command: str | None) -> str:
    if (agent is None) == (command is None):
        raise InvalidParams(
            "cannot tell which agent to run; give --agent NAME or --command CMD, and not both"
        )
    return agent if agent is not None else Path(_split(command or "")[0]).name.strip(".") or "agent"


def _split(command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidParams(f"cannot read --command: {error}; check its quotes") from None
    if not argv:
        raise InvalidParams("cannot run an empty --command; give the program and its arguments")
    return argv


def _folder(cwd: Path) -> Path:
    try:
        folder = cwd.resolve()  # agent, rules and record see the same folder, without `..` and links
        str(folder).encode()
    except OSError:
        raise InvalidParams("cannot work here: this folder is gone; choose one with --cwd") from None
    except UnicodeEncodeError:
        raise InvalidParams("cannot work in a folder whose path is not UTF-8 text; rename it") from None
    if not folder.is_dir():
        raise InvalidParams(f"cannot work in {folder}: it is no folder; choose one with --cwd")
    return folder


def _trusts(data_dir: Path, *, this_time: bool) -> Callable[[str], bool]:
    return (lambda _folder: True) if this_time else TrustedFolders(data_dir, LOCAL).trusts


def _prompt(prompt: str | None) -> str:
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_text(sys.stdin)
    if not prompt or not prompt.strip():
        raise InvalidParams("cannot run without a prompt; say what to do, or pipe it to standard input")
    return prompt


def _read_text(source: TextIO) -> str:
    try:
        text = source.read()
        text.encode()  # in some locales Python lets everything through
    except UnicodeError:
        raise InvalidParams("cannot read the prompt: it is not UTF-8 text; convert it") from None
    return text


def _passed(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    passed: dict[str, str] = {}
    for given in names:
        name, is_set, value = given.partition("=")
        if not name:
            raise InvalidParams("cannot pass a variable without a name; give --env NAME or --env NAME=VALUE")
        if not is_set and name not in environ:
            raise InvalidParams(f"cannot pass {name} on: it is not set here; give --env {name}=VALUE")
        passed[name] = value if is_set else environ[name]
    return passed


def _person(*, yes: bool, unattended: bool) -> Approver:
    if yes:
        return ApproveAll()
    tty = None if unattended else open_tty()
    return DenyAll() if tty is None else TerminalApprover(tty)
