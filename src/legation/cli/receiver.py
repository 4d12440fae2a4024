"""`legation receiver`: be the caller of a runner, to watch one by hand."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import msgspec
from cyclopts import Parameter

from legation.cli.command import line, say
from legation.clock import SystemClock
from legation.errors import ConfigInvalid, InvalidParams, LegationError, TooLarge

LOOPBACK: Final = "127.0.0.1"
LONGEST_POLL: Final = 60  # seconds
SHOWN: Final = 100  # characters of a text, in the one line for a notification

Message = MutableMapping[str, Any]


def receiver(
    *,
    token_file: Annotated[Path, Parameter(help="A file with the token that runners sign with.")],
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print what they report, a line for each thing.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Print each report as one JSON line.")] = False,
    host: Annotated[str, Parameter(help="The address to listen on.")] = LOOPBACK,
    port: Annotated[int, Parameter(help="The port to listen on; 0 takes a free one.")] = 0,
    data: Annotated[
        Path | None, Parameter(help="A folder that remembers nonces and sequences over a restart.")
    ] = None,
    approve: Annotated[
        bool, Parameter(negative="", help="Approve each permission that is asked for.")
    ] = False,
    deny: Annotated[bool, Parameter(negative="", help="Deny each permission that is asked for.")] = False,
    interactive: Annotated[
        bool,
        Parameter(
            negative="",
            help="Read what to tell the runner from standard input, a line each: y or n to the oldest permission, "
            "cancel, pause, resume, end, or say TEXT.",
        ),
    ] = False,
) -> int:
    """Take reports of runners, say what they hold, and answer what they ask.

    Its address is printed first: it is what `callbackUrl` of a runner's configuration is to be. A report that is forged,
    stale or sent twice is refused with 401, as a Legation server does it. With `"permissions": "route"` a runner asks
    here: what nobody answers is refused when its time is over. Ends with Ctrl-C.
    """
    if approve + deny + interactive > 1:
        raise ConfigInvalid("cannot answer in two ways; give one of --approve, --deny and --interactive")
    token = _token(token_file)
    show = _show_json if json else _show_lines if print_ or interactive else _show_nothing
    desk = CommandDesk("approved" if approve else "denied" if deny else None)
    return asyncio.run(_serve(token, show, desk, host, port, data, interactive=interactive))


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigInvalid(f"cannot read the token in {path}: {what}; write it there alone") from None
    if not token:
        raise ConfigInvalid(f"cannot use the token in {path}: it is empty; write one there")
    return token


class CommandDesk:
    """Commands to the runners of one receiver, in memory. They are numbered when they are fetched, behind all that the
    runner has had, of an earlier receiver too."""

    def __init__(self, outcome: str | None) -> None:
        self._outcome = outcome
        self._given: dict[str, list[dict[str, Any]]] = {}  # by the runner: fetched, and perhaps not heard
        self._waiting: dict[str, list[dict[str, object]]] = {}
        self._pending: list[tuple[str, str]] = []  # runners, and permissions that nobody has answered
        self._told = asyncio.Event()
        self._last: str | None = None  # the runner that was heard of last

    def see(self, name: str, report: Any) -> None:
        """Note what a report asks for, or ends."""
        self._last = name
        if report.kind == "permission_resolved":
            over = _permission(report).get("id")
            self._pending = [each for each in self._pending if each[1] != over]
        elif report.kind == "permission_request":
            asked = name, str(_permission(report).get("id"))
            if self._outcome is not None:
                self._answer(asked, self._outcome)
            else:
                self._pending.append(asked)

    def tell(self, words: str) -> str | None:
        """Act on a line of a person's; return what is wrong with it."""
        verb, _, rest = words.strip().partition(" ")
        if verb in ("y", "n"):
            if not self._pending:
                return "there is nothing to answer"
            self._answer(self._pending.pop(0), "approved" if verb == "y" else "denied")
        elif self._last is None:
            return "no runner has reported yet"
        elif verb in ("cancel", "pause", "resume", "end"):
            self._put(self._last, kind=verb)
        elif verb == "say" and rest.strip():
            self._put(self._last, kind="message", prompt=rest.strip())
        elif verb:
            return "write y, n, cancel, pause, resume, end, or say TEXT"
        return None

    async def poll(self, name: str, after: int, seconds: float) -> list[dict[str, Any]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (found := self._fetched(name, after)):
                    self._told.clear()
                    await self._told.wait()
        return found

    def _fetched(self, name: str, after: int) -> list[dict[str, Any]]:
        given = [each for each in self._given.get(name, []) if each["id"] > after]
        last = given[-1]["id"] if given else after
        waiting = self._waiting.pop(name, [])
        given += [{"id": number, **each} for number, each in enumerate(waiting, last + 1)]
        self._given[name] = given
        return given

    def _answer(self, asked: tuple[str, str], outcome: str) -> None:
        self._put(asked[0], kind="answer", permission=asked[1], outcome=outcome, by="receiver")

    def _put(self, name: str, **command: object) -> None:
        self._waiting.setdefault(name, []).append(command)
        self._told.set()


def _permission(report: Any) -> dict[str, Any]:
    return _member(report.permission)


def _member(raw: Any) -> dict[str, Any]:
    from legation.wire import jsontext

    return jsontext.read_object(bytes(raw or b"{}"))


def _listen(desk: CommandDesk) -> None:
    """Hear what a person types, until there is no more."""
    loop = asyncio.get_running_loop()

    def act(typed: str) -> None:
        if (wrong := desk.tell(typed)) is not None:
            say(wrong, "yellow")

    def read() -> None:
        for typed in sys.stdin:
            with suppress(RuntimeError):  # we are ending
                loop.call_soon_threadsafe(act, typed)

    # A daemon: nothing ends the reading of a terminal.
    threading.Thread(target=read, name="legation-receiver-input", daemon=True).start()


async def _serve(
    token: str,
    show: Callable[[Any, Any], None],
    desk: CommandDesk,
    host: str,
    port: int,
    data: Path | None,
    *,
    interactive: bool,
) -> int:
    import tempfile

    import uvicorn

    from legation.runner.receiver import ReportReceiver
    from legation.store.database.sqlite import SqliteDatabase

    with tempfile.TemporaryDirectory(prefix="legation-receiver-") as passing:
        folder = data or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        clock = SystemClock()
        async with SqliteDatabase(folder / "receiver.db", clock=clock) as database:
            await database.migrate()
            app = ReceiverApp(ReportReceiver(database, clock, clock), token, show, desk)
            listener = socket.create_server((host, port))
            config = uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False)
            say(f"receiving at http://{host}:{listener.getsockname()[1]}/")
            if interactive:
                _listen(desk)
            await uvicorn.Server(config).serve(sockets=[listener])
    return 0


class ReceiverApp:
    """An ASGI application that takes reports at any path, and gives commands. Whoever has the token may be any run."""

    def __init__(
        self, receiver: Any, token: str, show: Callable[[Any, Any], None], desk: CommandDesk
    ) -> None:
        self._receiver, self._token, self._show, self._desk = receiver, token, show, desk

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        try:
            status, answer = 200, await self._take(scope, receive)
        except LegationError as error:
            status, answer = error.status.http, {"detail": error.message}
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _take(self, scope: Message, receive: Callable[[], Awaitable[Message]]) -> object:
        from legation.runner.receiver import add_runner
        from legation.store.database.transaction import Duplicate
        from legation.wire.callbacks import MOST_BYTES, read_report, token_digest, verify

        if scope["method"] == "GET" and scope["path"].endswith("/commands"):
            return await self._poll(scope)
        if scope["method"] != "POST":
            raise InvalidParams("cannot answer this: runners send their reports with POST")
        headers = _headers(scope)
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MOST_BYTES:
                raise TooLarge(f"cannot take a report of more than {MOST_BYTES} bytes; send less")
            if not message.get("more_body"):
                break
        verify(self._token, headers, bytes(body), SystemClock().now_ms())
        report = read_report(bytes(body))
        name, now = f"{report.run_id}/{report.prompt_id}", SystemClock().now_ms()
        with suppress(Duplicate):
            await self._receiver.database.transact(
                add_runner, name, "local", token_digest(self._token), socket.gethostname(), now_ms=now
            )
        runner = await self._receiver.admit(name, headers)
        _, taken = await self._receiver.take(runner, headers, bytes(body))
        self._show(report, taken)
        if taken.fresh:
            self._desk.see(name, report)
        return {"head": taken.head, "fresh": taken.fresh, "missing": taken.missing}

    async def _poll(self, scope: Message) -> object:
        from legation.wire.callbacks import verify

        verify(self._token, _headers(scope), b"", SystemClock().now_ms())
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode()).items()}
        after, seconds = query.get("after", "0"), query.get("wait", "0")
        if not (after.isdigit() and seconds.isdigit()):
            raise InvalidParams("cannot give commands: `after` and `wait` are numbers; correct them")
        name = f"{query.get('run', '')}/{query.get('prompt', '')}"
        return {"commands": await self._desk.poll(name, int(after), min(int(seconds), LONGEST_POLL))}


def _headers(scope: Message) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _show_nothing(_report: Any, _taken: Any) -> None: ...


def _show_json(report: Any, taken: Any) -> None:
    if taken.fresh:
        print(msgspec.json.encode(report).decode(), flush=True)


def _show_lines(report: Any, taken: Any) -> None:
    if not taken.fresh:
        say(f"{report.sequence} {report.kind}: came before", "dim")
        return
    if taken.missing:
        say(
            f"{taken.missing} report(s) before {report.sequence} never came; the snapshot stands for them",
            "yellow",
        )
    if report.kind == "heartbeat":
        say(f"  {line(f'heartbeat of {report.run_id}')}", "dim")
        return
    # What runner and agent say is made plain: this is somebody's terminal.
    say(
        f"{report.sequence} {report.kind}: {len(report.notifications)} notification(s), {line(_end(report))}",
        "bold",
    )
    for each in report.notifications:
        say(f"  {line(_line(bytes(each)))}")
    if report.changes is not None:
        for file in report.changes.files:
            say(f"  {line(f'{file.status} {file.path} +{file.added} -{file.removed}')}")


def _act(told: dict[str, Any]) -> str:
    action = told.get("action") or {}
    return f"{told.get('title')} ({action.get('tool')} {action.get('command') or action.get('paths') or ''})"


def _end(report: Any) -> str:
    if report.kind == "permission_request":
        return f"may it? {_act(_permission(report))}"
    if report.kind == "unasked_effect":
        return f"done unasked: {_act(_member(report.effect))}"
    if report.kind == "turn_ended":
        return f"stop reason {_member(report.turn).get('stopReason')}"
    if report.kind == "permission_resolved":
        answered = _permission(report)
        return f"{answered.get('outcome')} by {answered.get('by')}"
    if report.error is not None:
        return f"failed: {report.error.message}"
    return f"ended: {report.stop_reason}" if report.stop_reason else f"session {report.session_id}"


def _line(raw: bytes) -> str:
    from legation.wire import jsontext

    update = jsontext.read_object(raw).get("update")
    if not isinstance(update, dict):
        return raw[:SHOWN].decode(errors="replace")
    content = update.get("content")
    text = content.get("text") if isinstance(content, dict) else update.get("title") or update.get("status")
    return f"{update.get('sessionUpdate')}: {str(text or '')[:SHOWN]!r}"
