"""A worker's steps, on both databases, with a provider that counts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.rig import CountingProvider, Rig
from tests.store.database.databases import Either

from legation.errors import NotFound
from legation.runs.lease import HeldRun, RunLeases
from legation.runs.lists import resume_run
from legation.runs.provider import Observation, RunJob, StepFailed
from legation.runs.run import PACKING, SQL, TOPIC, Run, RunCaps, request_cancel
from legation.runs.states import TERMINAL, CleanupStatus, ErrorClass, RunState
from legation.runs.steps import STEPS
from legation.runs.worker import _forget_workers, _lost_machines
from legation.secret import Secret
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.vault import Vault
from legation.wire.principal import Principal


@pytest.fixture
def rig(database: Either, tmp_path: Path) -> Rig:
    return Rig(database, CountingProvider(tmp_path / "things"))


def counted(rig: Rig) -> CountingProvider:
    assert isinstance(rig.provider, CountingProvider)
    return rig.provider


async def test_a_run_goes_all_the_way_and_leaves_nothing(rig: Rig) -> None:
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit())
    assert (run.state, run.outcome, run.cleanup) == (
        RunState.SUCCEEDED,
        RunState.SUCCEEDED,
        CleanupStatus.SUCCEEDED,
    )
    assert (run.error_class, run.secret_id, run.machine) == (None, None, PACKING)
    assert (run.attempt, run.has_slot, run.lease_token) == (1, False, "")
    name = f"{run.id}-1"
    assert counted(rig).effects == {("create", name): 1, ("clean runner", name): 1, ("clean folder", name): 1}
    assert counted(rig).left() == []
    assert await secrets_left(rig) == 0


async def secrets_left(rig: Rig) -> int:
    def count() -> Transaction[int]:
        from legation.store.secrets.vault import keys_in_use

        return sum((yield from keys_in_use()).values())

    return await rig.database.read(count) - await _content_keys(rig)


async def _content_keys(rig: Rig) -> int:
    (query,) = parse("-- name: n\nselect count(*) as n from content_key;")

    def count() -> Transaction[int]:
        (row,) = yield query()
        return int(row["n"])

    return await rig.database.read(count)


async def test_everything_is_in_the_journal_before_it_is_made(rig: Rig) -> None:
    seen: list[tuple[str, str, dict[str, str]]] = []

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if (effect, phase) in (("folders", "before"), ("create", "before"), ("create", "after")):
            rows = await rig.database.read(_resources, run)
            seen.append((effect, phase, rows))

    async with rig.working(rig.worker(on_effect=on_effect)):
        run_id = await rig.submit()
        await rig.until(run_id)
    folder, runner = run_id, f"{run_id}-1"
    assert seen == [
        ("folders", "before", {folder: "intended", runner: "intended"}),
        ("create", "before", {folder: "made", runner: "intended"}),
        ("create", "after", {folder: "made", runner: "intended"}),
    ]
    run = await rig.run(run_id)
    assert set((await rig.database.read(_resources, run)).values()) == {"gone"}


def _resources(run: Run) -> Transaction[dict[str, str]]:
    rows = yield SQL.resources(workspace=run.workspace, run=run.id)
    return {row["name"]: row["state"] for row in rows}


@pytest.mark.parametrize("where", ["queued", "running"])
async def test_a_cancelled_run_ends_as_cancelled_and_is_cleaned(rig: Rig, where: str) -> None:
    run_id = await rig.submit("hold")
    if where == "queued":
        await rig.database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
    async with rig.working(rig.worker()):
        if where == "running":
            await rig.until(run_id, lambda run: run.state is RunState.RUNNING)
            await rig.database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
            rig.database.notify(TOPIC)
        run = await rig.until(run_id)
    assert (run.state, run.error_class, run.secret_id) == (RunState.CANCELLED, None, None)
    assert counted(rig).left() == []
    assert counted(rig).effects["create", f"{run_id}-1"] == (where == "running")


async def test_a_cancel_in_the_middle_of_a_step_stops_it_before_the_next_effect(rig: Rig) -> None:
    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if (step, effect, phase) == ("start", "register", "after"):
            await rig.database.transact(request_cancel, "local", run.id, now_ms=rig.clock.now_ms())

    async with rig.working(rig.worker(on_effect=on_effect)):
        run = await rig.until(await rig.submit())
    assert run.state is RunState.CANCELLED
    assert counted(rig).effects["create", f"{run.id}-1"] == 0


async def test_a_run_whose_time_is_up_ends_as_timed_out(rig: Rig) -> None:
    caps = RunCaps(concurrency=10, run_seconds=0.001)
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit("hold", caps=caps))
    assert (run.state, run.error_class) == (RunState.TIMED_OUT, ErrorClass.DEADLINE)


class Failing(CountingProvider):
    def __init__(self, folder: Path, *failures: Exception) -> None:
        super().__init__(folder)
        self.failures = list(failures)

    async def create(self, job: RunJob) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return await super().create(job)


@pytest.mark.parametrize(
    ("failure", "error_class", "code"),
    [
        (
            StepFailed(ErrorClass.TENANT_PERMANENT, "key", "the key was refused"),
            ErrorClass.TENANT_PERMANENT,
            "key",
        ),
        (NotFound("cannot find that"), ErrorClass.TENANT_PERMANENT, "legation/not-found"),
        (ValueError("sk-secret"), ErrorClass.INTERNAL, "ValueError"),
    ],
)
async def test_a_failure_that_does_not_pass_has_one_class_and_is_cleaned(
    database: Either, tmp_path: Path, failure: Exception, error_class: ErrorClass, code: str
) -> None:
    rig = Rig(database, Failing(tmp_path / "things", failure))
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit())
    assert (run.state, run.error_class, run.error_code) == (RunState.FAILED, error_class, code)
    assert "sk-secret" not in (run.error_reason or "")
    assert counted(rig).left() == []
    assert (run.secret_id, await secrets_left(rig)) == (None, 0)


async def test_one_that_may_pass_is_tried_again(
    database: Either, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legation.runs.worker.BACKOFF_MS", (1,))
    passing = StepFailed(ErrorClass.UNAVAILABLE, "disk", "there is no room")
    rig = Rig(database, Failing(tmp_path / "things", passing, passing))
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit())
    assert (run.state, run.tries) == (RunState.SUCCEEDED, 0)
    rig = Rig(database, Failing(tmp_path / "more", *[passing] * 10))
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit())
    assert (run.state, run.error_class) == (RunState.FAILED, ErrorClass.UNAVAILABLE)


async def test_without_any_notice_every_run_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.database, "notify", lambda _topic: None)
    async with rig.working(rig.worker("w1")), rig.working(rig.worker("w2")):
        runs = [await rig.submit(notify=False) for _ in range(10)]
        for each in runs:
            assert (await rig.until(each)).state is RunState.SUCCEEDED
    assert set(counted(rig).effects.values()) == {1}


async def test_at_its_cap_a_workspace_has_no_more_runs_at_once(rig: Rig) -> None:
    caps = RunCaps(concurrency=2)
    most, now = 0, 0

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        nonlocal most, now
        if (step, effect, phase) == ("prepare", "journal", "after"):
            now += 1
            most = max(most, now)
        if (step, effect, phase) == ("clean", "secret", "after"):
            now -= 1

    async with rig.working(rig.worker(on_effect=on_effect)):
        runs = [await rig.submit(caps=caps) for _ in range(8)]
        for each in runs:
            assert (await rig.until(each)).state is RunState.SUCCEEDED
    assert most == 2


async def test_more_than_a_worker_does_at_once_is_done_one_after_the_other(rig: Rig) -> None:
    runs = [await rig.submit() for _ in range(12)]
    worker = rig.worker(concurrency=2)
    async with rig.working(worker):
        for each in runs:
            assert (await rig.until(each)).state is RunState.SUCCEEDED
    assert worker.busy == 0


async def test_a_worker_that_is_told_to_stop_gives_back_what_it_is_at(rig: Rig) -> None:
    begun = asyncio.Event()

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if (step, effect, phase) == ("prepare", "folders", "before"):
            begun.set()
            await asyncio.Event().wait()

    run_id = await rig.submit()
    async with rig.working(rig.worker(on_effect=on_effect, drain=0.05)):
        await begun.wait()
    run = await rig.run(run_id)
    assert (run.state, run.lease_token) == (RunState.PREPARING, "")
    async with rig.working(rig.worker("w2")):
        assert (await rig.until(run_id)).state is RunState.SUCCEEDED


async def test_a_stolen_lease_stops_a_step_cold(rig: Rig) -> None:
    """It is stolen between two effects of one step; the second one never happens."""
    stolen = asyncio.Event()

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if (step, effect, phase) == ("start", "create", "before") and not stolen.is_set():
            stolen.set()
            await rig.database.transact(_steal, run.id)

    first = rig.worker("w1", on_effect=on_effect, poll=3600)
    async with rig.working(first):
        run_id = await rig.submit()
        await stolen.wait()
        async with asyncio.timeout(60):
            while not first.figures.lost:
                await asyncio.sleep(0.01)
        assert counted(rig).effects == {}
    run = await rig.run(run_id)
    assert (run.lease_token, run.state) == ("thief", RunState.STARTING)


def _steal(run_id: str) -> Transaction[None]:
    (query,) = parse(
        "-- name: steal\nupdate run set lease_token = 'thief', lease_owner = 'thief' where id = :id;"
    )
    yield query(id=run_id)


async def test_a_lease_that_cannot_be_renewed_is_given_up_in_time(rig: Rig) -> None:
    """The step hangs, and its lease is taken by another: the renewal is refused, and the step is cancelled where it stands."""
    cut = asyncio.Event()

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if (step, effect, phase) == ("prepare", "folders", "before"):
            await rig.database.transact(_steal, run.id)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cut.set()
                raise

    async with rig.working(rig.worker(lease=1.5, on_effect=on_effect)):
        await rig.submit()
        async with asyncio.timeout(60):
            await cut.wait()
    assert counted(rig).left() == []


async def test_a_lost_machine_gives_back_what_had_no_prompt_and_fails_what_may_have_had(rig: Rig) -> None:
    reached: dict[str, asyncio.Event] = {"prepare": asyncio.Event(), "observe": asyncio.Event()}
    early = await rig.submit("hold")
    late = await rig.submit("hold")

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if run.id == early and step == "prepare":
            reached["prepare"].set()
            await asyncio.Event().wait()

    lost = rig.worker("w1", machine="lost", on_effect=on_effect, lease=1.0)
    task = asyncio.create_task(lost.run())
    await reached["prepare"].wait()
    await rig.until(late, lambda run: run.state is RunState.RUNNING)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (counted(rig).folder / f"{late}-1").unlink()  # with its machine
    async with rig.working(rig.worker("w2", machine="other", machine_lost=0.01, seen_every=0.1)):
        failed = await rig.until(late)
        again = await rig.until(early, lambda run: run.state is RunState.RUNNING)
        await rig.database.transact(request_cancel, "local", early, now_ms=rig.clock.now_ms())
        await rig.until(early)
    assert (failed.state, failed.error_class) == (RunState.FAILED, ErrorClass.MACHINE_LOST)
    assert (failed.machine, failed.secret_id) == (PACKING, None)
    assert (again.machine, again.attempt) == ("other", 2)


@pytest.mark.parametrize("asking", [True, False])
async def test_a_lost_machine_gives_back_a_run_whose_agent_asks_about_all_and_was_allowed_nothing(
    rig: Rig, asking: bool
) -> None:
    counted(rig).asking = asking
    run_id = await rig.submit("hold")
    lost = rig.worker("w1", machine="lost", lease=1.0)
    task = asyncio.create_task(lost.run())
    await rig.until(run_id, lambda run: run.state is RunState.RUNNING)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (counted(rig).folder / f"{run_id}-1").unlink()  # with its machine
    async with rig.working(rig.worker("w2", machine="other", machine_lost=0.01, seen_every=0.1)):
        if not asking:
            failed = await rig.until(run_id)
            assert (failed.state, failed.error_class) == (RunState.FAILED, ErrorClass.MACHINE_LOST)
            return
        again = await rig.until(run_id, lambda run: run.state is RunState.RUNNING and run.attempt == 2)
        assert (again.machine, again.secret_id is not None) == ("other", True)
        await rig.database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
        await rig.until(run_id)


@pytest.mark.parametrize(
    ("default", "said", "wanted"), [(False, None, False), (True, None, True), (True, False, False)]
)
async def test_what_was_made_stays_where_the_run_or_else_the_installation_says_so_and_secrets_never_do(
    rig: Rig, default: bool, said: bool | None, wanted: bool
) -> None:
    async with rig.working(rig.worker()):
        run = await rig.until(await rig.submit(caps=RunCaps(concurrency=10, retain=default), retain=said))
    assert run.state is RunState.SUCCEEDED
    assert run.cleanup == ("skipped" if wanted else "succeeded")
    assert counted(rig).left() == ([run.id] if wanted else [])
    assert (await rig.database.read(_resources, run))[run.id] == ("retained" if wanted else "gone")


WRITES = [
    (step.name, effect)
    for step in STEPS
    for effect in step.effects
    if effect in ("journal", "record", "register", "removed", "secret")
]


@pytest.mark.parametrize(("step", "effect"), WRITES, ids=["-".join(each) for each in WRITES])
async def test_a_lease_stolen_after_it_was_asked_for_leaves_nothing_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str, effect: str
) -> None:
    """Between the question and the write: what is written names the lease once more."""
    check, due, stolen = RunLeases.check, False, asyncio.Event()
    before: list[int] = []

    async def on_effect(run: Run, at: str, what: str, phase: str) -> None:
        nonlocal due
        if (at, what, phase) == ("start", "record", "after") and step in ("observe", "stop"):
            (counted(rig).folder / run.attempt_id).unlink()  # its runner dies
            if step == "stop":
                await rig.database.transact(request_cancel, "local", run.id, now_ms=rig.clock.now_ms())
        due = (at, what, phase) == (step, effect, "before") and not stolen.is_set()

    async def check_then_lose(leases: RunLeases, held: HeldRun) -> Run:
        run = await check(leases, held)
        if due:
            before.extend(await rig.database.read(_written))
            await rig.database.transact(_steal, run.id)
            stolen.set()
        return run

    monkeypatch.setattr(RunLeases, "check", check_then_lose)
    worker = rig.worker(on_effect=on_effect)
    async with rig.working(worker):
        run_id = await rig.submit()
        await asyncio.wait_for(stolen.wait(), 60)
        async with asyncio.timeout(60):
            while not worker.figures.lost:
                await asyncio.sleep(0.01)
    assert (await rig.run(run_id)).lease_token == "thief"
    assert await rig.database.read(_written) == before


def _written() -> Transaction[list[int]]:
    counts = (
        "select count(*) as n from run_attempt",
        "select count(*) as n from run_resource where state = 'made'",
        "select count(*) as n from run_resource where state = 'gone'",
        "select count(*) as n from run_resource",
        "select count(*) as n from cleanup_attempt",
        "select count(*) as n from runner",
        "select count(*) as n from vault_bundle",
    )
    found = []
    for number, text in enumerate(counts):
        (query,) = parse(f"-- name: n{number}\n{text};")
        found += [int((yield query())[0]["n"])]
    return found


async def test_a_silent_worker_is_not_forgotten_while_something_is_bound_to_its_machine(rig: Rig) -> None:
    async with rig.working(rig.worker("w1", machine="m1")):
        run_id = await rig.submit("hold")
        await rig.until(run_id, lambda run: run.state is RunState.RUNNING)
    await rig.database.transact(_forget_workers, rig.clock.now_ms() + 1)
    assert await rig.database.read(_lost_machines, rig.clock.now_ms() + 1) == ["m1"]
    async with rig.working(rig.worker("w2", machine="m1")):
        await rig.database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
        await rig.until(run_id)
    await rig.database.transact(_forget_workers, rig.clock.now_ms() + 1)
    assert await rig.database.read(_lost_machines, rig.clock.now_ms() + 1) == []


class Refusing(CountingProvider):
    """Its runs have failed by a word of their runner, when somebody comes to look."""

    async def observe(self, run: Run) -> Observation:
        if run.machine != "lost" or run.state is not RunState.RUNNING:
            return await super().observe(run)
        return Observation(
            "ended", RunState.FAILED, ErrorClass.TENANT_PERMANENT, "key", "the key was refused"
        )


async def test_a_run_that_failed_before_its_machine_was_lost_keeps_its_class(
    database: Either, tmp_path: Path
) -> None:
    rig = Rig(database, CountingProvider(tmp_path / "things"))
    run_id = await rig.submit("hold")
    async with rig.working(rig.worker("w1", machine="lost")):
        await rig.until(run_id, lambda run: run.state is RunState.RUNNING)
    rig = Rig(database, Refusing(tmp_path / "things"), rig.sealer)
    async with rig.working(rig.worker("w2", machine="other", machine_lost=0.01, seen_every=0.1)):
        run = await rig.until(run_id)
    assert (run.state, run.error_class, run.error_code) == (
        RunState.FAILED,
        ErrorClass.TENANT_PERMANENT,
        "key",
    )
    assert run.cleanup is CleanupStatus.FAILED_TERMINAL
    assert (run.secret_id, await secrets_left(rig)) == (None, 0)


async def test_the_vault_is_opened_once_in_the_life_of_a_run_by_the_step_that_needs_it_under_its_lease(
    rig: Rig,
) -> None:
    opened = list[tuple[str, bool]]()

    class Watched(Vault):
        async def open(self, workspace: str, owner: str, bundle_id: str) -> dict[str, Secret]:
            run = await rig.run(owner)
            opened.append((run.state, bool(run.lease_token)))
            return await super().open(workspace, owner, bundle_id)

    worker = rig.worker()
    worker.tools = replace(worker.tools, vault=Watched(rig.database, rig.sealer, rig.clock))
    async with rig.working(worker):
        run = await rig.until(await rig.submit())
    assert run.state is RunState.SUCCEEDED
    assert opened == [("starting", True)]


@pytest.mark.parametrize("retain", [False, True])
async def test_a_failed_run_that_is_resumed_leaves_nothing_either(
    database: Either, tmp_path: Path, retain: bool
) -> None:
    refused = StepFailed(ErrorClass.TENANT_PERMANENT, "key", "the key was refused")
    rig = Rig(database, Failing(tmp_path / "things", refused))
    by = Principal(kind="token", id="tok_1", workspace="local", scopes=frozenset({"operate"}), level=2)
    async with rig.working(rig.worker()):
        failed = await rig.until(await rig.submit(retain=retain))
        assert (failed.state, counted(rig).left()) == (RunState.FAILED, [failed.id] if retain else [])
        bundle = rig.vault.sealed("local", failed.id, {"MODEL_KEY": Secret("another", "MODEL_KEY")})
        await rig.database.transact(resume_run, by, failed, bundle, now_ms=rig.clock.now_ms())
        rig.database.notify(TOPIC)
        run = await rig.until(failed.id, lambda run: run.state in TERMINAL and run.attempt == 2)
    assert (run.state, run.secret_id, await secrets_left(rig)) == (RunState.SUCCEEDED, None, 0)
    assert counted(rig).left() == ([run.id] if retain else [])
    states = set((await rig.database.read(_resources, run)).values())
    assert states == ({"gone", "retained"} if retain else {"gone"})
