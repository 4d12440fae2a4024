"""`legation sessions`: agents at work on the server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from legation.cli.command import (
    SHOWN,
    SUMMARY,
    Console,
    Json,
    PlaceFlags,
    connect,
    line,
    say,
    say_json,
    server_path,
    show,
    tell,
    when,
)
from legation.errors import Cancelled, InvalidParams, LegationError, NotFound
from legation.wire.api.sessions import (
    LocalMcp,
    PermissionMode,
    Recording,
    RemoteMcp,
    SessionInfo,
    Skills,
    SkillSource,
)

if TYPE_CHECKING:
    from legation.client import Legation
    from legation.client.http import Caller
    from legation.client.sessions import ClientSession


app = App(
    name="sessions",
    help="""Agents at work on the server: list, begin, send, follow, stop, delete.

Without a command it lists the sessions, the newest first.""",
    help_epilogue='Begin with `legation up`, then: legation sessions new claude "fix the test" --directory .',
)

SessionId = Annotated[str, Parameter(help="Its whole id, as listed.")]
Said = Annotated[str | None, Parameter(help="What to say. Without it, standard input is read.")]
Detach = Annotated[bool, Parameter(negative="", help="Do not wait for what becomes of it.")]


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """List the sessions, the newest first; then those that `legation exec` ran by itself, which are read-only."""
    columns: dict[str, Callable[[SessionInfo | Recording], str | None]] = {
        "id": lambda each: each.session_id,
        "agent": lambda each: each.agent,
        "status": _status,
        "mode": lambda each: None if isinstance(each, Recording) else each.agent_mode,
        "model": lambda each: None if isinstance(each, Recording) else each.model,
        "events": lambda each: str(each.event_count),
        "changed": lambda each: when(each.updated_at),
        "title": lambda each: each.title,
    }
    with connect(settings) as server:
        from legation.cli.ps import recorded  # late: it brings asyncio along

        empty = 'no sessions; begin one with: legation sessions new claude "fix the test"'

        rows: Iterator[SessionInfo | Recording] = chain(server.sessions.pages(), recorded(server, SHOWN))
        show(rows, columns, json=json, if_empty=empty)


def _status(each: SessionInfo | Recording) -> str:
    if isinstance(each, Recording):
        return f"{each.status}, by exec"
    return f"{each.status}, turn cut" if each.cut else each.status


@app.command
def new(
    agent: Annotated[str, Parameter(help="Its name, as `legation agents` lists it.")],
    prompt: Annotated[str | None, Parameter(help="What to do. Without it the session waits.")] = None,
    /,
    *,
    directory: Annotated[
        Path | None, Parameter(help="Where the agent works. Without it, a folder of the session's own.")
    ] = None,
    model: Annotated[str | None, Parameter(help="As `legation agents models` lists them.")] = None,
    variant: Annotated[str | None, Parameter(help="Of the model, where it has several.")] = None,
    mode: Annotated[str | None, Parameter(help="The agent's: build, plan, or one that it names.")] = None,
    permission_mode: Annotated[
        PermissionMode | None, Parameter(help="What the agent asks for. The policy holds in each of them.")
    ] = None,
    mcp: Annotated[
        Path | None, Parameter(help='A file of MCP servers: {"mcpServers": {"name": {"command": ...}}}.')
    ] = None,
    skill: Annotated[
        tuple[Path, ...], Parameter(help="A folder of skills; may be given several times.", negative="")
    ] = (),
    fork: Annotated[
        str | None, Parameter(help="A session of the same agent; it begins with what was said there.")
    ] = None,
    title: Annotated[
        str | None, Parameter(help="For people, in lists. Without it, the beginning of the prompt.")
    ] = None,
    id: Annotated[str | None, Parameter(help="A name of your own for it. Else one is made.")] = None,  # noqa: A002
    detach: Detach = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Begin a session; with a prompt, follow what becomes of it, as `legation exec` does.

    The exit code is 0 only when the agent ended its turn by itself. The session stays: `legation sessions send` goes on.
    """
    if prompt is not None and not prompt.strip():
        raise InvalidParams("cannot begin with nothing to say; say what to do, or leave the prompt out")
    with connect(settings) as server, _agents_that_are_none():
        session = server.sessions.create(
            agent,
            session_id=id,
            directory=None if directory is None else server_path(directory),
            agent_mode=mode,
            permission_mode=permission_mode,
            model=model,
            variant=variant,
            title=title if title is not None or prompt is None else prompt[:SUMMARY],
            mcp=read_mcp(mcp),
            skills=skills_of(skill),
            fork=fork,
        )
        return _begin(session, prompt, detach=detach, json=json, settings=settings)


@app.command(name="continue")
def continue_(
    session: Annotated[str, Parameter(help="The id of the one to go on from, as listed.")],
    prompt: Annotated[
        str | None, Parameter(help="What to do next. Without it the new session waits.")
    ] = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(help="Another one than it had.")] = None,
    detach: Detach = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Go on in a new session, where the agent cannot open the old one again: it is told what was said there.

    It works in the same folder, set as the other was, and hears the transcript with the first message. The other stays as
    it is: its messages, and those that it did not take, can be read there.
    """
    if prompt is not None and not prompt.strip():
        raise InvalidParams("cannot go on with nothing to say; say what to do, or leave the prompt out")
    with connect(settings) as server, _agents_that_are_none():
        former = _found(server, session).info()
        made = server.sessions.create(agent or former.agent, continues=former.session_id, title=former.title)
        return _begin(made, prompt, detach=detach, json=json, settings=settings)


@app.command
def send(
    session: SessionId,
    text: Said = None,
    /,
    *,
    detach: Detach = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Send a message to an agent, and follow what becomes of it.

    What it asks is asked here, if somebody sits at this terminal; else see `legation approvals`. Ctrl-C cancels the
    turn; twice, it only stops following.
    """
    with connect(settings) as server:
        return _send(_found(server, session), text or _piped(), detach=detach, json=json, settings=settings)


@app.command
def tail(
    session: SessionId,
    /,
    *,
    from_: Annotated[int, Parameter(name="--from", help="Begin with the event of this number.")] = 1,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Show what happened in a session and what happens, until it is terminated."""
    if from_ < 1:
        raise InvalidParams(f"cannot begin with event {from_}; give a number from 1")
    from legation.cli.sessions_follow import follow_session

    with connect(settings) as server:
        _found(server, session)
        _looked_at(server, session)
    follow_session(settings, session, from_ - 1, json=json)


@app.command(name="show")
def show_(session: SessionId, /, *, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """Show what a session is."""
    with connect(settings) as server:
        info = _found(server, session).info()
        _looked_at(server, session)
    facts = [f"{name:<12} {line(value)}" for name, value in _facts(info).items() if value is not None]
    tell(info, "\n".join(facts), json=json)


def _looked_at(server: Legation, session: str) -> None:
    """Put it away in `legation ps`: whoever is shown it need not be told again that it failed or is done."""
    with suppress(LegationError):  # it is in no inbox, or the token may not say so
        server.look_at(session)


@app.command
def steer(session: SessionId, text: Said = None, /, *, settings: PlaceFlags | None = None) -> None:
    """Say something to the turn that runs. Claude Code and Codex take it in; where an agent cannot, use `send`."""
    with connect(settings) as server:
        _found(server, session).steer(text or _piped())
    say(f"told the turn that runs in {line(session)}")


@app.command
def cancel(session: SessionId, /, *, settings: PlaceFlags | None = None) -> None:
    """Cancel the turn that runs, if one does. The session goes on."""
    with connect(settings) as server:
        _found(server, session).cancel()
    say(f"cancelled what ran in {line(session)}, if anything did")


@app.command
def terminate(session: SessionId, /, *, settings: PlaceFlags | None = None) -> None:
    """End a session for good: its agent is stopped with all that it started. What happened can still be read."""
    with connect(settings) as server:
        _found(server, session).terminate()
    say(f"terminated {line(session)}; see what happened with: legation sessions tail {line(session)}")


@app.command
def delete(
    *sessions: Annotated[str, Parameter(help="Their whole ids, as listed.")],
    yes: Annotated[
        bool, Parameter(negative="", help="Do not ask first. Needed where nobody can be asked.")
    ] = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Delete sessions for good: what happened in them, their own folders, their MCP servers, their grants.

    Their ids are never used again; what was approved in them stays on the trace (`legation trace`). One in which a turn
    runs is refused: `legation sessions cancel` it, or `terminate` it, first. To end one and keep its events, use
    `legation sessions terminate`.
    """
    if not sessions:
        raise InvalidParams("cannot delete no session; name one or more, as `legation sessions` lists them")
    with connect(settings) as server:
        # All of them are there, or none goes.
        found = [_found(server, each) for each in dict.fromkeys(sessions)]
        if not yes:
            _must_be_confirmed([each.info() for each in found])
        for each in found:
            each.delete()
            say(f"deleted {line(each.id)}")


def _must_be_confirmed(sessions: Sequence[SessionInfo]) -> None:
    if not sys.stdin.isatty():
        raise InvalidParams("cannot ask whether to delete: nobody is at the terminal; give --yes")
    out = Console(sys.stderr)
    for each in sessions:
        title = f"  {line(each.title)}" if each.title else ""
        out.say(f"{line(each.session_id)}  {line(each.agent)}  {each.event_count} events{title}")
    count = "this session" if len(sessions) == 1 else f"these {len(sessions)} sessions"
    out.write(f"delete {count} for good, with what happened in them and their own folders? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("cannot delete what nobody confirmed: nothing was deleted; say y, or give --yes")


def _found(server: Legation, session: str) -> ClientSession[Caller]:
    try:
        return server.sessions.get(session)
    except NotFound as error:
        if error.data and error.data.get("deleted"):
            raise
        raise NotFound(
            f"cannot find session {line(session)} here; give the whole id, as `legation sessions` lists it"
        ) from None


@contextmanager
def _agents_that_are_none() -> Iterator[None]:
    """Tell of an agent that there is not with the exit code of other commands; over HTTP, as sandbox-agent has it, it is a
    bad parameter."""
    try:
        yield
    except InvalidParams as error:
        if error.data and error.data.get("type") == "unsupported_agent":
            raise NotFound(error.message) from None
        raise


def _begin(
    session: ClientSession[Caller],
    prompt: str | None,
    *,
    detach: bool,
    json: bool,
    settings: PlaceFlags | None,
) -> int:
    """Say which session it is, and send it what there is to do."""
    if json:
        say_json(session.info())
    else:
        say(line(session.id))
    if prompt is None:
        return 0
    return _send(session, prompt, detach=detach, json=json, settings=settings)


def _send(
    session: ClientSession[Caller], text: str, *, detach: bool, json: bool, settings: PlaceFlags | None
) -> int:
    if detach:
        session.send(text)
        return 0
    from legation.cli.sessions_follow import follow_turn

    return follow_turn(settings, session.id, text, json=json)


def _piped() -> str:
    try:
        text = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidParams("cannot send what is piped: it is not UTF-8 text; convert it") from None
    if not text.strip():
        raise InvalidParams("cannot send nothing; say what to do, or pipe it to standard input")
    return text


def _facts(info: SessionInfo) -> dict[str, str | None]:
    ended = info.exit or {}
    return {
        "id": info.session_id,
        "title": info.title,
        "agent": info.agent,
        "status": f"{info.status}, ended" if info.ended else info.status,
        "mode": info.agent_mode,
        "permissions": info.permission_mode,
        "model": info.model,
        "variant": info.variant,
        "directory": info.directory,
        "agent's id": info.native_session_id,
        "tools": ", ".join(info.mcp) if info.mcp else None,
        "skills": ", ".join(info.skills) if info.skills else None,
        "events": str(info.event_count),
        "continues": info.continues,
        "continued by": info.continued_by,
        "begun": when(info.created_at),
        "changed": when(info.updated_at),
        "turn cut": _cut(info),
        "exit": " ".join(f"{name}: {value}" for name, value in ended.items() if value is not None) or None,
    }


def _cut(info: SessionInfo) -> str | None:
    at, reason = (info.cut or {}).get("at"), (info.cut or {}).get("reason")
    return f"{when(at) if isinstance(at, int) else '?'}: {reason}" if info.cut else None


class _McpEntry(msgspec.Struct, rename="camel"):
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    type: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None


class _McpFile(msgspec.Struct, rename="camel"):
    """MCP servers as agents have them for themselves. Keys stand in such a file, never on the command line."""

    mcp_servers: dict[str, _McpEntry]


def read_mcp(path: Path | None) -> dict[str, LocalMcp | RemoteMcp] | None:
    if path is None:
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_McpFile)
    except OSError as error:
        raise InvalidParams(f"cannot read {path}: {error.strerror}; give a file with mcpServers") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"cannot read {path} as MCP servers: {error}; correct it") from None
    return {name: _server(path, name, server) for name, server in found.mcp_servers.items()}


def _server(path: Path, name: str, server: _McpEntry) -> LocalMcp | RemoteMcp:
    if server.command and not server.url:
        return LocalMcp(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
    if server.url and not server.command:
        transport: Literal["http", "sse"] = "sse" if server.type == "sse" else "http"
        return RemoteMcp(url=server.url, transport=transport, headers=server.headers)
    raise InvalidParams(f"cannot use MCP server {name!r} of {path}: give it a command or a url, not both")


def skills_of(folders: Sequence[Path]) -> Skills | None:
    if not folders:
        return None
    return Skills(sources=[SkillSource(type="local", source=server_path(folder)) for folder in folders])
