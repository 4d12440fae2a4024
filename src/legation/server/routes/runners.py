"""`/v1/runs/{id}/reports` and `/commands`: where runners report, and hear of what they are to do; docs/runner.md has both."""

# ruff: noqa: A002 - an id is spelt as in the path

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from legation.errors import (
    AlreadyAnswered,
    Conflict,
    Forbidden,
    NotFound,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from legation.gateway.tools import Unanswered, refused
from legation.server.http.request import BodyReader, check_media
from legation.server.http.routes import OPEN, Call, Routes
from legation.server.routes.tools import while_connected
from legation.wire.api.approvals import AskUse, AskView, Value
from legation.wire.api.shape import ResponseBody

if TYPE_CHECKING:
    from collections.abc import Mapping

    from legation.runner.commands import RunnerCommands
    from legation.runner.receiver import ReportReceiver, RunnerRow
    from legation.wire.callbacks import RunnerReport

BODY_SECONDS: Final = 60.0  # for a report to arrive: its network's time
LONGEST_POLL: Final = 60  # seconds: below what proxies cut off
MOST_USE: Final = 1024 * 1024  # bytes of what is said with a use

routes = Routes(tag="runs")
_bodies = BodyReader(BODY_SECONDS)


class ReportTaken(ResponseBody, kw_only=True):
    """Answer to a report. `head` is the sequence of the last one that counts; `fresh` is false for one that came before,
    or too late; `missing` says how many before it never came: its snapshot stands for them."""

    head: int
    fresh: bool
    missing: int = 0


@routes.post("/v1/runs/{id}/reports", access=OPEN, takes="application/json", errors=(Unauthenticated,))
async def take_report(call: Call, id: str) -> ReportTaken:
    """Take a report of a runner, signed with its token.

    Who shows another token, signs wrongly, is more than five minutes off, or sends a nonce again is refused with 401, and
    nothing is kept. A report that was taken before is answered with 200 again."""
    from legation.runs import events
    from legation.runs.run import TOPIC
    from legation.wire.callbacks import MOST_BYTES

    raw = dict(call.request.scope["headers"])
    check_media(raw.get(b"content-type", b""))
    headers: Mapping[str, str] = call.request.headers
    receiver = _receiver(call)
    runner = await receiver.admit(id, headers)  # before its body: nobody else has us read so much
    body = await _bodies.read(raw, call.request.receive, MOST_BYTES)
    report, taken = await receiver.take(runner, headers, body)
    await commands_of(call).take(runner, report)
    if taken.fresh and report.sequence:
        call.services.database.notify(events.TOPIC)
    if taken.woken or await _asks_or_heard(call, runner, report):
        call.services.database.notify(TOPIC)
    return ReportTaken(head=taken.head, fresh=taken.fresh, missing=taken.missing)


class CommandsGiven(ResponseBody, kw_only=True):
    """Answer to a poll: commands as docs/runner.md has them, in their order."""

    commands: list[Value]


@routes.get("/v1/runs/{id}/commands", access=OPEN, errors=(Unauthenticated, Unavailable))
async def poll_commands(
    call: Call,
    id: str,
    after: Annotated[int, Meta(ge=0)] = 0,
    wait: Annotated[int, Meta(ge=0, le=LONGEST_POLL)] = 0,
    run: str = "",  # noqa: ARG001 - both are for callers with one address for many runners
    prompt: str = "",  # noqa: ARG001
) -> CommandsGiven:
    """Give a runner its commands behind the number `after`; where there are none, wait for one, up to `wait` seconds.

    Signed as a report is, with an empty body. Who asks behind a number has all up to it."""
    headers: Mapping[str, str] = call.request.headers
    receiver = _receiver(call)
    runner = await receiver.admit(id, headers)
    await receiver.see(runner, headers)
    given = await while_connected(call, commands_of(call).poll(runner, after, wait))
    return CommandsGiven(commands=[*given])


@routes.post(
    "/v1/runs/{id}/commands/{command}/use",
    access=OPEN,
    takes="application/json",
    errors=(
        Unauthenticated,
        NotFound,
        Conflict,
        AlreadyAnswered,
        Forbidden,
        Unanswered,
        RateLimited,
        Unavailable,
    ),
)
async def use_answer(
    call: Call,
    id: str,
    command: int,
    run: str = "",  # noqa: ARG001
    prompt: str = "",  # noqa: ARG001
) -> AskView:
    """Use the approval that a command of kind `answer` told of, right before the agent acts on it: once.

    Signed as a report is. Sent again it is the same use. 403, 408, 409, 429: it may not be done any more."""
    import msgspec

    from legation.errors import InvalidParams

    raw = dict(call.request.scope["headers"])
    check_media(raw.get(b"content-type", b""))
    headers: Mapping[str, str] = call.request.headers
    receiver = _receiver(call)
    runner = await receiver.admit(id, headers)
    body = await _bodies.read(raw, call.request.receive, MOST_USE)
    await receiver.see(runner, headers, body)
    try:
        told = msgspec.json.decode(body, type=AskUse)
    except ValueError as error:
        raise InvalidParams(f"cannot read a use: {error}; send one as docs/runner.md has it") from None
    return await commands_of(call).use(runner, command, told.resolved, partial(refused, why=None))


async def _asks_or_heard(call: Call, runner: RunnerRow, report: RunnerReport) -> bool:
    """Have its run looked at, where it begins to wait for somebody, or no longer does."""
    from legation.runs.run import wake

    if runner.run_id is None or report.kind not in ("permission_request", "permission_resolved"):
        return False
    now = call.services.clock.now_ms()
    return await call.services.database.transact(wake, runner.workspace, runner.run_id, now_ms=now)


def _receiver(call: Call) -> ReportReceiver:
    from legation.runner.receiver import ReportReceiver
    from legation.runs.events import ReportKeeper

    services = call.services
    keeper = ReportKeeper(services.database, services.content, services.blobs)
    wall = getattr(services.clock, "wall", services.clock)
    return ReportReceiver(services.database, services.clock, wall, prepare=keeper.prepare)


def commands_of(call: Call) -> RunnerCommands:
    from legation.runner.commands import RunnerCommands

    services = call.services
    return RunnerCommands(services.database, services.sealer, services.clock, services.asks)
