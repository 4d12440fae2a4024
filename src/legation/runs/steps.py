"""Steps of a run: one for each claim, each made of a few effects in a fixed order.

INV-S1  Before an effect the lease is asked for, and whether the run is still wanted; without the lease the step ends there.
INV-S2  What is about to be made is in the journal before, and its id at once after. A step may be cut off anywhere and begun again.
INV-S3  The secrets of a run are opened once in the step that needs them, and dropped with it, before the lease is given back.
"""

from __future__ import annotations

import logging
import secrets as chance
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import msgspec

from legation.clock import Clock
from legation.errors import LegationError, NotFound
from legation.runs.lease import End, HeldRun, RunLeases
from legation.runs.packs import EventPacks
from legation.runs.provider import Observation, Provider, RunJob, RunResource, StepFailed, failure_of
from legation.runs.run import PACKING, SQL, SUBMISSION, Change, LeaseLost, LeaseReturn, Run, hold
from legation.runs.states import TERMINAL, CleanupStatus, ErrorClass, RunAct, RunState, move
from legation.secret import Secret
from legation.store.database.transaction import Database, Transaction, read_committed
from legation.store.secrets.vault import ContentStore, Vault, destroy_bundles
from legation.wire.action import EFFECTLESS
from legation.wire.api.runs import RunSpec

OBSERVE_MS: Final = (
    5_000  # between two looks at a run that nobody has woken: a runner that died is found by them
)
BACKOFF_MS: Final = (1_000, 5_000, 30_000, 120_000)  # after a step that failed, by how often it has
REVIVALS: Final = 5  # starts of a runner on its folder after it has died, to have the rest reported
RESTS: Final = 3  # the same, of a run that is cancelled
REST_MS: Final = 30_000  # for the rest of one to be reported: the server's time
CLEANUPS: Final = 5  # tries to remove what was made
PACKS: Final = 16  # of a run in one step: so many MiB of its events
PACK_AGAIN_MS: Final = 3_600_000  # after packs that failed: nothing is lost meanwhile, and the disk or the store may need somebody

_log = logging.getLogger("legation.worker")

Phase = Literal["before", "after"]
Written = Callable[[], Transaction[None]]
OnEffect = Callable[[Run, str, str, Phase], Awaitable[None]]


class Unwanted(Exception):
    """Somebody has asked for the run's end: the step stops before its next effect."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools of a step. A provider is loaded when a run needs it. `on_effect` hears of each effect before and after it: for tests that kill there.
    Without `packs` events stay in the database."""

    database: Database
    clock: Clock
    machine: str
    vault: Vault
    content: ContentStore
    providers: Mapping[str, Callable[[], Provider]] = field(repr=False)
    observe_ms: int = OBSERVE_MS
    rest_ms: int = REST_MS
    on_effect: OnEffect | None = None
    packs: EventPacks | None = None
    pack_after_ms: int = 0  # from a run's end


@dataclass(slots=True)
class Work:
    """One run under a lease, in one step."""

    tools: Tools
    leases: RunLeases
    held: HeldRun
    step: str
    yields: bool  # to a request for the run's end

    @property
    def run(self) -> Run:
        return self.held.run

    @property
    def now(self) -> int:
        return self.tools.clock.now_ms()

    @property
    def provider(self) -> Provider:
        found = self.tools.providers.get(self.run.provider)
        if found is None:
            raise StepFailed(
                ErrorClass.UNAVAILABLE, "provider", f"no worker has the provider {self.run.provider} here"
            )
        return found()

    async def before(self, effect: str) -> None:
        """INV-S1."""
        await self._tell(effect, "before")
        run = await self.leases.check(self.held)
        if self.yields and run.is_unwanted:
            raise Unwanted

    async def after(self, effect: str) -> None:
        await self._tell(effect, "after")

    async def _tell(self, effect: str, phase: Phase) -> None:
        if self.tools.on_effect is not None:
            await self.tools.on_effect(self.run, self.step, effect, phase)

    async def write(self, effect: str, *works: Written) -> None:
        """Write, in one transaction under the lease."""
        await self.before(effect)
        await self.tools.database.transact(_under_lease, self.run, works, self.now)
        await self.after(effect)

    async def spec(self) -> RunSpec:
        pages = await self.tools.content.read(self.run.workspace, self.run.id, SUBMISSION)
        if not pages:
            raise NotFound(f"cannot find what was submitted as {self.run.id}; submit it again")
        return msgspec.json.decode(pages[0].plain, type=RunSpec)

    async def secrets(self) -> dict[str, Secret]:
        run = self.run
        if run.secret_id is None:
            return {}
        return await self.tools.vault.open(run.workspace, run.id, run.secret_id)

    # Ends of a step.

    def again(self, after_ms: int) -> LeaseReturn:
        return LeaseReturn(self.run, self.now + after_ms)

    def moved(self, act: RunAct, after_ms: int = 0, **changed: object) -> Change:
        state = move(self.run.state, act, self.run.outcome)
        changes: dict[str, Any] = {
            "state": state,
            "tries": 0,
            "waits_for": None,
            "resume_at": None,
            **changed,
        }
        run = replace(self.run, **changes)
        return Change(self.run, run, self.now + after_ms)

    def failed(self, failure: StepFailed, act: RunAct = RunAct.END) -> Change:
        return self.moved(
            act,
            outcome=RunState.FAILED,
            error_class=failure.error_class,
            error_code=failure.code,
            error_reason=failure.reason,
        )

    def unwanted(self) -> Change:
        """Cancelled, or its time was up."""
        if self.run.is_unwanted:
            return self.moved(RunAct.CANCEL, outcome=RunState.CANCELLED)
        return self.moved(
            RunAct.CANCEL,
            outcome=RunState.TIMED_OUT,
            error_class=ErrorClass.DEADLINE,
            error_code="deadline",
            error_reason="its time was up",
        )


# Safe under read committed: the row of the run is locked first, and what follows is written by nobody but the lease's holder.
@read_committed
def _under_lease(run: Run, works: tuple[Written, ...], now_ms: int) -> Transaction[None]:
    yield from hold(run, now_ms=now_ms)
    for work in works:
        yield from work()


# The steps.


async def admit(work: Work) -> End:
    """Take a slot of the workspace and bind the run to this machine, or leave it parked."""
    await work.before("slot")
    run = work.run
    deadline = work.now + round(run.caps.run_seconds * 1000)
    change = work.moved(
        RunAct.ADMIT,
        machine=work.tools.machine,
        attempt=run.attempt + 1,
        has_slot=True,
        started_at=run.started_at or work.now,
        deadline_at=run.deadline_at or deadline,
    )
    return change if run.has_slot else replace(change, slot="take")


async def prepare(work: Work) -> End:
    """Write the attempt and all that it needs into the journal, then make what the runner needs."""
    run, provider = work.run, work.provider
    spec = await work.spec()
    await work.write("journal", partial(_journal, run, provider.resources(run), work.now))
    await work.before("folders")
    await provider.prepare(run, spec)
    await work.after("folders")
    made = provider.resources(run)[:-1]
    await work.write("record", *(partial(_made, run, each, None, work.now) for each in made))
    return work.moved(RunAct.PREPARE)


async def start(work: Work) -> End:
    """Find the attempt's runner, or register and start one."""
    found = await work.provider.find(work.run)
    if found is None:
        found = await _create(work)
    await _record(work, found)
    return work.moved(RunAct.START, work.tools.observe_ms)


async def _create(work: Work, *, rest_only: bool = False) -> str:
    provider, token = work.provider, Secret(chance.token_urlsafe(32), "runner-token")
    spec, opened = await work.spec(), await work.secrets()
    run, now = work.run, work.now
    await work.write("register", partial(provider.journal, run, token, now), partial(_handed, run, now))
    await work.before("create")
    job = RunJob(run, spec, token, lambda: work.leases.check(work.held), opened, rest_only)
    made = await provider.create(job)
    await work.after("create")
    return made


async def _record(work: Work, made: str) -> None:
    await work.write(
        "record", partial(_made, work.run, work.provider.resources(work.run)[-1], made, work.now)
    )


async def observe(work: Work) -> End:
    """Look how the run stands. A runner that died is started again on its folder: it reports the rest, and that it failed."""
    run = work.run
    seen = await work.provider.observe(run)
    if seen.kind == "ended":
        return _ended(work, seen)
    if run.is_unwanted or (run.deadline_at is not None and work.now >= run.deadline_at):
        return work.unwanted()
    if seen.kind == "working":
        return _standing(work, seen)
    if run.tries >= REVIVALS:
        return work.failed(
            StepFailed(ErrorClass.MACHINE_LOST, "runner", "its runner is gone and did not come back")
        )
    made = await _create(work)
    await _record(work, made)
    return Change(work.run, replace(work.run, tries=run.tries + 1), work.now + work.tools.observe_ms)


def _ended(work: Work, seen: Observation) -> Change:
    return work.moved(
        RunAct.END,
        outcome=seen.outcome,
        error_class=seen.error_class,
        error_code=seen.error_code,
        error_reason=seen.error_reason,
    )


def _standing(work: Work, seen: Observation) -> End:
    """Follow what its runner does: it works, waits for somebody, was paused, or waits for a usage limit to be over."""
    run, pause = work.run, work.tools.observe_ms
    limited = seen.limited_until is not None and work.now < seen.limited_until
    if limited:
        state, pause = RunState.SUSPENDED, min(pause, max(1, (seen.limited_until or 0) - work.now))
    elif seen.paused:
        state = RunState.PAUSED
    else:
        state = RunState.WAITING if seen.waits_for is not None else RunState.RUNNING
    facts = {"waits_for": seen.waits_for, "resume_at": seen.limited_until if limited else None}
    if state is not run.state:
        act = _STANDING.get((run.state, state))
        if act is None:  # on the way there it runs, for as long as nobody sees it
            act, pause = _STANDING[run.state, RunState.RUNNING], 0
        return work.moved(act, pause, **facts)
    if (run.waits_for, run.resume_at) == (seen.waits_for, facts["resume_at"]):
        return work.again(pause)
    return Change(run, replace(run, **facts), work.now + pause)  # type: ignore[arg-type]


_STANDING: Final = {
    (RunState.RUNNING, RunState.WAITING): RunAct.ASK,
    (RunState.RUNNING, RunState.PAUSED): RunAct.PAUSE,
    (RunState.RUNNING, RunState.SUSPENDED): RunAct.LIMIT,
    (RunState.WAITING, RunState.RUNNING): RunAct.ANSWER,
    (RunState.WAITING, RunState.PAUSED): RunAct.PAUSE,
    (RunState.PAUSED, RunState.RUNNING): RunAct.GO_ON,
    (RunState.SUSPENDED, RunState.RUNNING): RunAct.RESUME,
}


async def stop(work: Work) -> End:
    """End the runner; by then it has reported all. One that died before is started again on its folder, to send the rest and no more, a few
    times: without its events the run ends all the same."""
    await work.before("stop")
    await work.provider.cancel(work.run)
    await work.after("stop")
    run, seen = work.run, await work.provider.observe(work.run)
    if seen.kind != "gone" or not seen.has_rest or run.tries >= RESTS:
        return work.moved(RunAct.END)
    try:
        await _record(work, await _create(work, rest_only=True))
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - a run that nobody wants does not fail for what it leaves untold
        _log.warning("cannot have the rest of %s reported: %s", run.id, failure_of(error).reason)
    # It wakes the run when it is done; else its time is up then.
    return Change(work.run, replace(work.run, tries=run.tries + 1), work.now + work.tools.rest_ms)


async def clean(work: Work) -> End:
    """Remove what was made, the last first, or keep it where that is wanted, and destroy the secrets, whatever became of the rest."""
    run, provider = work.run, work.provider
    failure: StepFailed | None = None
    keeps, found = await _retains(work), await work.tools.database.read(_resources, run)
    kept = any(state == "retained" for _, state in found)
    for each in _made_so_far(found):
        await work.before("remove")
        try:
            stays = keeps and await provider.retain(run, each)
            if not stays:
                await provider.clean(run, each)
        except Exception as error:  # noqa: BLE001 - a resource that stays holds up no other, and no secret
            failure = failure_of(error)
            await work.write("removed", partial(_cleanup, run, each, failure, work.now))
            continue
        await work.after("remove")
        await work.write("removed", partial(_cleanup, run, each, None, work.now, stays))
        kept = kept or stays
    if failure is not None and run.tries < CLEANUPS:
        pause = BACKOFF_MS[min(run.tries, len(BACKOFF_MS) - 1)]
        later = replace(run, tries=run.tries + 1, cleanup=CleanupStatus.FAILED_RETRYABLE)
        return Change(work.run, later, work.now + pause)
    await _destroy_secrets(work)
    if failure is not None:
        return _end(work, CleanupStatus.FAILED_TERMINAL)
    return _end(work, CleanupStatus.SKIPPED if kept else CleanupStatus.SUCCEEDED)


async def _retains(work: Work) -> bool:
    """Tell whether what was made for it is to stay: its submission says so, else what the installation said then."""
    try:
        said = (await work.spec()).cleanup.retain
    except NotFound:  # it is being deleted
        return False
    return work.run.caps.retain if said is None else said


async def _destroy_secrets(work: Work) -> None:
    """Destroy the run's bundles and its runner's token. Under the lease: somebody may have resumed the run since, with others."""
    await work.write("secret", partial(_destroyed, work.run))
    await work.tools.database.scrub()


async def lose(work: Work) -> End:
    """Judge a run whose machine is silent: one whose runner still reports stays; one that cannot have had an effect begins again.
    What was made there stays where it is, as its cleanup says; its secrets go with the run's end."""
    run = work.run
    if run.state is RunState.CLEANING:
        return await _ended_uncleaned(work)
    seen = await work.provider.observe(run)
    if seen.kind == "working":
        return work.again(work.tools.observe_ms)
    if run.state is RunState.CANCELLING:
        return work.moved(RunAct.END)
    if seen.kind == "ended":
        return _ended(work, seen)
    # Whoever comes back from there is not heard any more: it may be cut off, and at work. Before the look at what was approved: what is
    # approved after it is used by nobody.
    await work.write("restart", partial(_shut_out, run, work.now))
    if await _had_no_effect(work):
        return work.moved(RunAct.RESTART, machine="")
    return work.failed(
        StepFailed(
            ErrorClass.MACHINE_LOST, "machine", "its machine is lost, and the prompt may have had an effect"
        )
    )


async def _had_no_effect(work: Work) -> bool:
    """Tell whether the newest attempt can be begun again: it never had the prompt; or its agent can do no more than read, search and
    think without an approval from here, and nothing else was ever approved, nor anything further said to it."""
    run, database = work.run, work.tools.database
    if not await database.read(_was_handed, run):
        return True
    asks_all = await work.provider.asks_all(run, await work.spec())
    return asks_all and not await database.read(_may_have_acted, run)


async def _ended_uncleaned(work: Work) -> Change:
    await _destroy_secrets(work)
    return _end(work, CleanupStatus.FAILED_TERMINAL)


async def pack(work: Work) -> End:
    """Pack the events of a run that has ended, some at a time. What cannot be packed now stays in the database, where it is read as before."""
    packs = work.tools.packs
    try:
        for _ in range(PACKS):
            wanted = packs is not None and work.run.delete_requested_at is None
            if packs is None or not wanted or (found := await packs.next(work.run)) is None:
                return LeaseReturn(work.run, None)
            await work.write("intend", partial(packs.intend, found, work.now))
            await work.before("blob")
            size = await packs.put(found)
            await work.after("blob")
            await work.write("packed", partial(packs.keep, found, size, work.now))
    except LeaseLost:
        raise
    except LegationError as error:
        _log.warning("cannot pack the events of %s now; they stay in the database: %s", work.run.id, error)
        return work.again(PACK_AGAIN_MS)
    return work.again(0)


def _end(work: Work, cleanup: CleanupStatus) -> Change:
    run = work.run
    # Whether or not events are packed here: somebody may come who does.
    done = work.moved(
        RunAct.CLEAN,
        work.tools.pack_after_ms,
        cleanup=cleanup,
        ended_at=work.now,
        secret_id=None,
        machine=PACKING,
        has_slot=False,
    )
    return replace(done, slot="give" if run.has_slot else None, ends_attempt=run.attempt > 0)


def _journal(run: Run, resources: tuple[RunResource, ...], now_ms: int) -> Transaction[None]:
    yield SQL.add_attempt(
        id=run.attempt_id,
        workspace=run.workspace,
        run=run.id,
        number=run.attempt,
        machine=run.machine,
        now=now_ms,
    )
    for each in resources:
        yield SQL.intend(
            run=run.id,
            name=each.name,
            workspace=run.workspace,
            attempt=run.attempt,
            kind=each.kind,
            now=now_ms,
        )


def _handed(run: Run, now_ms: int) -> Transaction[None]:
    yield SQL.note_handed(workspace=run.workspace, id=run.attempt_id, now=now_ms)


def _was_handed(run: Run) -> Transaction[bool]:
    rows = yield SQL.attempt(workspace=run.workspace, run=run.id, number=run.attempt)
    return any(row["handed_at"] is not None for row in rows)


def _may_have_acted(run: Run) -> Transaction[bool]:
    who = {"workspace": run.workspace, "runner": run.attempt_id, "run": run.id, "attempt": run.attempt}
    return bool((yield SQL.acts(**who, harmless=msgspec.json.encode(sorted(EFFECTLESS)).decode())))


def _shut_out(run: Run, now_ms: int) -> Transaction[None]:
    yield SQL.shut_out(workspace=run.workspace, id=run.attempt_id, now=now_ms)


def _made(run: Run, resource: RunResource, external_id: str | None, now_ms: int) -> Transaction[None]:
    yield SQL.note_made(
        workspace=run.workspace, run=run.id, name=resource.name, external_id=external_id, now=now_ms
    )


def _destroyed(run: Run) -> Transaction[None]:
    yield from destroy_bundles(run.workspace, run.id)
    yield SQL.retire_runner(workspace=run.workspace, id=run.attempt_id, none=b"")


def _resources(run: Run) -> Transaction[list[tuple[RunResource, str]]]:
    rows = yield SQL.resources(workspace=run.workspace, run=run.id)
    return [(RunResource(row["kind"], row["name"]), row["state"]) for row in rows]


def _made_so_far(found: list[tuple[RunResource, str]]) -> list[RunResource]:
    """List what is there or may be, runners before the folders that they work in."""
    left = [each for each, state in found if state in ("intended", "made")]
    return sorted(left, key=lambda each: each.kind, reverse=True)


def _cleanup(
    run: Run, resource: RunResource, failure: StepFailed | None, now_ms: int, stays: bool = False
) -> Transaction[None]:
    yield SQL.add_cleanup(
        run=run.id,
        name=resource.name,
        workspace=run.workspace,
        status="skipped"
        if stays
        else "succeeded"
        if failure is None
        else "failed_retryable"
        if run.tries < CLEANUPS
        else "failed_terminal",
        error_code=None if failure is None else failure.code,
        error_reason=None if failure is None else failure.reason,
        now=now_ms,
    )
    if failure is None:
        state = "retained" if stays else "gone"
        yield SQL.note_gone(workspace=run.workspace, run=run.id, name=resource.name, state=state, now=now_ms)


@dataclass(frozen=True, slots=True)
class Step:
    """`effects` in their order: the test that kills at each is made of this list. `yields` to a request for the run's end."""

    name: str
    states: frozenset[RunState]
    effects: tuple[str, ...]
    work: Callable[[Work], Awaitable[End]]
    yields: bool = False


STEPS: Final = (
    Step("admit", frozenset({RunState.QUEUED}), ("slot",), admit, yields=True),
    Step("prepare", frozenset({RunState.PREPARING}), ("journal", "folders", "record"), prepare, yields=True),
    Step("start", frozenset({RunState.STARTING}), ("register", "create", "record"), start, yields=True),
    Step(
        "observe",
        frozenset({RunState.RUNNING, RunState.WAITING, RunState.PAUSED, RunState.SUSPENDED}),
        ("register", "create", "record"),
        observe,
        yields=True,
    ),
    Step("stop", frozenset({RunState.CANCELLING}), ("stop", "register", "create", "record"), stop),
    Step("clean", frozenset({RunState.CLEANING}), ("remove", "removed", "secret"), clean),
)
LOSE: Final = Step(
    "lose", frozenset(), ("restart", "secret"), lose
)  # in the place of any other, for a lost machine
PACK: Final = Step("pack", TERMINAL, ("intend", "blob", "packed"), pack)  # of what has its end
BY_STATE: Final = {state: step for step in (*STEPS, PACK) for state in step.states}
