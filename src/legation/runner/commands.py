"""Commands to runners, at the server: what puts them there, and how a runner gets them.

A runner's permission is an ask of its own at the door, by its waiter `run:<id>`; its answer becomes a command when the runner
polls, at whichever server. What people tell a runner is a command too. What one says is sealed content of the run's.

INV-G1  Commands are numbered from 1, without a gap; under a key there is one. Polled again, the same ones come.
INV-G2  A permission is asked once, under the id that the runner gave it, however often its report comes. Its answer is one
        command, also where the server ended between the two.
INV-G3  Whoever polls or reports is alive; with the terminal report all that it waited for is superseded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from legation.approvals.asks import AskService
from legation.approvals.queue import first_of
from legation.approvals.request import DoorRequest, DoorResult, remote_request
from legation.clock import Clock
from legation.errors import Conflict, Forbidden, InvalidParams, LegationError, NotFound, RateLimited
from legation.runner.receiver import RUNS, SQL, RunnerRow
from legation.store.database.transaction import Database, Duplicate, Transaction, only, rows
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import ContentStore
from legation.tasks import TaskSet
from legation.wire import jsontext
from legation.wire.acp.updates import ContentBlock
from legation.wire.action import MAX_DEPTH, Ask, Outcome, deeper_than
from legation.wire.api.approvals import AskView
from legation.wire.callbacks import (
    TERMINAL,
    CommandKind,
    PermissionRequest,
    RunnerCommand,
    RunnerReport,
    read_permission,
    read_resolved,
)
from legation.wire.principal import AGENT_SCOPES, Principal, is_agent_name
from legation.wire.resolved import ResolvedPaths

STREAM: Final = "commands"  # of the run's content
MOST_AT_ONCE: Final = 100  # commands in an answer, and asks of a runner that are waited for
MOST_PERMISSION: Final = 1024 * 1024  # bytes of one: nobody could judge more
LOOK_EVERY: Final = 2.0  # seconds: as late as a command may come whose notice was lost
_PERMISSION_ID: Final = re.compile(r"apr_[0-9A-Za-z]{8,64}", re.ASCII)
# What is wrong with a permission, or with asking for it, is told to the agent: to send it again would change nothing.
_REFUSED: Final = (InvalidParams, Forbidden, Conflict, RateLimited)
_OUTCOMES: Final[dict[str, Outcome]] = {
    "approved": "approved",
    "denied": "denied",
    "expired": "expired",
    "superseded": "superseded",
    "cancelled": "cancelled",
}


def runner_principal(runner: RunnerRow) -> Principal:
    """Name a runner as the one that asks: it never answers."""
    return Principal(kind="runner", id=runner.id, workspace=runner.workspace, scopes=AGENT_SCOPES, level=0)


def waiter_of(runner: RunnerRow) -> str:
    return f"run:{runner.id}"


class RunnerCommands:
    """Commands of every runner, for any server of the database."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock, asks: AskService) -> None:
        self._database, self._clock, self._asks = database, clock, asks
        self._content = ContentStore(database, sealer, clock)

    # Given.

    async def put(
        self,
        runner: RunnerRow,
        kind: CommandKind,
        *,
        prompt: str | tuple[ContentBlock, ...] | None = None,
        key: str | None = None,
        also: Callable[[], Transaction[None]] | None = None,
    ) -> int:
        """Tell a runner something; return the command's number. Given again under the same key it is the same one. One that
        has ended is a `Conflict`. What `also` writes is written with it, once."""
        command = RunnerCommand(id=1, kind=kind, prompt=prompt)
        if kind == "answer" or command.problem is not None:
            why = command.problem or "answers come of approvals"
            raise InvalidParams(f"cannot give a runner that command: {why}")
        if (number := await self._put(runner, command, key, also)) is None:
            raise Conflict(f"cannot tell {runner.id} anything: it has ended; start another")
        return number

    async def _put(
        self,
        runner: RunnerRow,
        command: RunnerCommand,
        key: str | None,
        also: Callable[[], Transaction[None]] | None = None,
    ) -> int | None:
        given = (self._content, runner, command, key, self._clock.now_ms(), also)
        try:
            number = await self._database.transact(_add_command, *given)
        except Duplicate:  # another was faster under the same key
            number = await self._database.transact(_add_command, *given)
        self._database.notify(_topic(runner))
        return number

    # Reports have their consequences.

    async def take(self, runner: RunnerRow, report: RunnerReport) -> None:
        """Do what a report asks for, that it is a repetition or not: the server may have ended before it had done that."""
        who, waiter = runner_principal(runner), waiter_of(runner)
        if report.kind in TERMINAL:
            await self._asks.give_up(who, waiter)
        elif runner.ended_at is not None:
            return
        elif report.kind == "permission_request":
            await self._ask(runner, read_permission(report), len(bytes(report.permission or b"")))
        elif report.kind == "permission_resolved":
            resolved = read_resolved(report)
            if resolved.outcome != "approved":
                with suppress(LegationError):  # it has ended by itself, or was refused at once
                    await self._asks.withdraw(who, resolved.id)
        elif report.kind == "heartbeat":
            await self._asks.sign(who, waiter)

    async def _ask(self, runner: RunnerRow, permission: PermissionRequest, size: int) -> None:
        if not _PERMISSION_ID.fullmatch(permission.id):
            raise InvalidParams(
                "cannot ask for a permission with that id: it begins with apr_; make a new one"
            )
        known = await self._database.read(rows, SQL.command_by_key(**_of(runner), key=permission.id))
        if known:
            return
        try:
            request = _request(runner, permission, size, await self._policy(runner))
            view = await self._asks.ask(request, waiter_of(runner), permission.id)
        except _REFUSED as error:
            refused = _answer(permission.id, "denied", "legation", error.message)
            await self._put(runner, refused, permission.id)
            return
        if view.status == "pending":
            self._database.notify(_topic(runner))  # a poll that is held begins to wait for it
        else:
            await self._put(runner, await self._answer_of(runner, permission.id, view), permission.id)

    async def _answer_of(self, runner: RunnerRow, permission: str, view: AskView) -> RunnerCommand:
        """Tell who decided it and why: the agent hears what is meant for it, the run's record all of it."""
        outcome, by = _OUTCOMES[view.status], view.decided_by or "policy"
        found = await self._asks.ending(runner_principal(runner), permission)
        if found is None:
            return _answer(permission, outcome, by, view.why)
        rule, ending = found
        told = None if outcome == "approved" else ending.message or view.why or ending.default
        why = f"{rule}: {ending.said or ending.reason}"
        return _answer(permission, outcome, by, why, told)

    async def _policy(self, runner: RunnerRow) -> str | None:
        """Find the policy that its run was submitted with; whatever the runner says of it counts for nothing."""
        if runner.run_id is None:
            return None
        row = only(await self._database.read(rows, RUNS.caps(workspace=runner.workspace, id=runner.run_id)))
        return None if row is None else msgspec.json.decode(row["caps"], type=_Narrowed).policy

    # Taken.

    async def poll(self, runner: RunnerRow, after: int, seconds: float) -> tuple[RunnerCommand, ...]:
        """Give the commands behind that number; where there are none, wait for one, so long."""
        who = {"workspace": runner.workspace, "id": runner.id}
        await self._database.transact(rows, SQL.ack_commands(**who, after=after))
        deadline = self._clock.monotonic() + seconds
        looks = _Looks(self._asks, runner_principal(runner))
        try:
            with self._database.listen(_topic(runner)) as told:
                while True:
                    told.clear()
                    await self._put_answers(runner)
                    page = await self._page(runner, after)
                    left = deadline - self._clock.monotonic()
                    if page or left <= 0:
                        return page
                    looks.follow(await self._open(runner), left)
                    looks.ended.clear()
                    await first_of(self._clock, min(left, LOOK_EVERY), told, looks.ended)
        finally:
            await looks.close()

    async def _open(self, runner: RunnerRow) -> list[str]:
        who = runner_principal(runner)
        found = SQL.open_asks(**_of(runner), kind=who.kind, limit=MOST_AT_ONCE)
        return [row["id"] for row in await self._database.read(rows, found)]

    async def _put_answers(self, runner: RunnerRow) -> None:
        who = runner_principal(runner)
        for permission in await self._open(runner):
            with suppress(NotFound):  # it was forgotten meanwhile
                view = await self._asks.look(who, permission, 0)
                if view.status in _OUTCOMES:
                    await self._put(runner, await self._answer_of(runner, permission, view), permission)

    async def _page(self, runner: RunnerRow, after: int) -> tuple[RunnerCommand, ...]:
        given = await self._database.read(
            rows, SQL.commands_after(**_of(runner), after=after, limit=MOST_AT_ONCE)
        )
        if not given:
            return ()
        pages = await self._content.read(runner.workspace, *_owner(runner), after)
        found = [msgspec.convert(jsontext.read(page.plain), RunnerCommand) for page in pages]
        numbered = zip(pages, found, strict=True)
        return tuple(msgspec.structs.replace(each, id=page.first_seq) for page, each in numbered)

    async def use(
        self,
        runner: RunnerRow,
        number: int,
        resolved: ResolvedPaths | None,
        refusal: Callable[[DoorResult], Exception],
    ) -> AskView:
        """Use the approval that a command told of, right before the agent acts on it; sent again it is the same use."""
        if runner.ended_at is not None:
            raise Conflict(f"cannot use command {number}: the runner has ended; whoever goes on asks anew")
        row = only(await self._database.read(rows, SQL.command(**_of(runner), id=number)))
        if row is None or row["kind"] != "answer":
            raise NotFound(f"cannot use command {number}: it is no answer of this runner's")
        who, key = runner_principal(runner), f"command-{number}"
        return await self._asks.use(who, row["key"], key, resolved, refusal)


class _Looks:
    """Waits for the answers to asks, each once: meanwhile they are decided anew, and kept alive."""

    def __init__(self, asks: AskService, who: Principal) -> None:
        self._asks, self._who = asks, who
        self.ended = asyncio.Event()
        self._known: set[str] = set()
        self._tasks = TaskSet("legation-runner-asks")

    def follow(self, asks: list[str], seconds: float) -> None:
        for each in asks:
            if each not in self._known:
                self._known.add(each)
                self._tasks.start(self._look(each, seconds))

    async def _look(self, ask: str, seconds: float) -> None:
        with suppress(LegationError):  # the next poll looks again
            await self._asks.look(self._who, ask, seconds)
        self.ended.set()

    async def close(self) -> None:
        await self._tasks.close()


def _add_command(
    content: ContentStore,
    runner: RunnerRow,
    command: RunnerCommand,
    key: str | None,
    now_ms: int,
    also: Callable[[], Transaction[None]] | None = None,
) -> Transaction[int | None]:
    if key is not None and (row := only((yield SQL.command_by_key(**_of(runner), key=key)))) is not None:
        return int(row["id"])
    row = only((yield SQL.number_command(workspace=runner.workspace, id=runner.id)))
    if row is None:
        return None
    number = int(row["commands"])
    yield SQL.add_command(**_of(runner), id=number, kind=command.kind, key=key, now=now_ms)
    # The number is the page's: it is not in it.
    plain = jsontext.write(msgspec.structs.replace(command, id=1))
    yield from content.append(runner.workspace, *_owner(runner), number, number, plain)
    if also is not None:
        yield from also()
    return number


class _Narrowed(msgspec.Struct):
    policy: str | None = None


def _request(runner: RunnerRow, permission: PermissionRequest, size: int, policy: str | None) -> DoorRequest:
    action = permission.action
    if size > MOST_PERMISSION:
        raise InvalidParams(f"cannot judge a permission of more than {MOST_PERMISSION} bytes: split the call")
    if not is_agent_name(action.agent) or not action.tool.isprintable() or not 0 < len(action.tool) <= 256:
        raise InvalidParams("cannot judge a permission of that agent or tool: their names cannot be used")
    if deeper_than(MAX_DEPTH, action.params):
        raise InvalidParams(f"cannot judge arguments that are nested deeper than {MAX_DEPTH}: refuse it")
    if permission.resolved is not None:
        permission.resolved.check(action.paths, "$.permission.resolved")
    # All that an ask brings along: the diff on the card of whoever decides, and whether a yes would be one for ever.
    ask = Ask(
        id=permission.id,
        session_id=runner.id,
        action=action,
        options=permission.options,
        title=permission.title,
        asked_at=permission.asked_at,
        expires_at=permission.expires_at,
        tool_call_id=permission.tool_call_id,
        turn=permission.turn,
        diffs=permission.diffs,
        resolved=permission.resolved,
    )
    return remote_request(runner_principal(runner), ask, policy=policy)


def _answer(
    permission: str, outcome: Outcome, by: str, why: str | None, told: str | None = None
) -> RunnerCommand:
    """Make the answer; the agent is `told` why not, else `why`."""
    is_yes = outcome == "approved"
    return RunnerCommand(
        id=1,
        kind="answer",
        permission=permission,
        outcome=outcome,
        by=by,
        reason=why or outcome,
        message=None if is_yes else told or why,
        must_use=is_yes,
    )


def _owner(runner: RunnerRow) -> tuple[str, str]:
    """Name whose content commands are, and the stream of it: of a run, with which they go, each attempt has its own."""
    if runner.run_id is None:
        return runner.id, STREAM
    return runner.run_id, f"{STREAM}-{runner.id.rpartition('-')[2]}"


def _of(runner: RunnerRow) -> dict[str, str]:
    return {"workspace": runner.workspace, "runner": runner.id}


def _topic(runner: RunnerRow) -> str:
    return f"runner-commands:{runner.id}"
