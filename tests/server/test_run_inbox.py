"""Runs in the inbox, on both databases: what each came to, what is under way, and each change told as it happens, whoever wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.rig import CountingProvider
from tests.runs.rig import Rig as WorkerRig
from tests.server.rig import BOTH, Rig, open_rig

from legation.clock import SystemClock
from legation.runs import events as run_events
from legation.runs import steps
from legation.runs.provider import Observation, RunResource, StepFailed
from legation.runs.run import Run
from legation.runs.states import ErrorClass, RunState
from legation.server import inbox
from legation.server.inbox import InboxItems, StuckRuns
from legation.wire.api.inbox import InboxChanged
from legation.wire.event_types import decode

pytestmark = pytest.mark.heavy

LIMIT = 60.0
FAILED = Observation("ended", RunState.FAILED, ErrorClass.AGENT_FAILED, "x", "the agent ended")


class FailsSome(CountingProvider):
    """Fails the runs whose prompt is `fail`."""

    async def observe(self, run: Run) -> Observation:
        path = self.folder / run.id
        return FAILED if path.exists() and path.read_text() == "fail" else await super().observe(run)


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with asyncio.timeout(170), open_rig(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
async def worker(rig: Rig, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    services = rig.services
    made = WorkerRig(services.database, FailsSome(tmp_path / "provider"), services.sealer, SystemClock())  # type: ignore[arg-type]
    async with made.working(made.worker()):
        yield made


class Inbox:
    """The inbox as one person reads it, and what its stream tells from then on."""

    def __init__(self, rig: Rig, by: dict[str, str]) -> None:
        self.rig, self.by, self.told = rig, by, list[InboxChanged]()

    async def read(self) -> dict[str, Any]:
        answer = await self.rig.client.get("/v1/inbox", headers=self.by)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def until(self, happened: str, run: str) -> None:
        stream = await self.rig.services.inbox_items.stream("local")
        assert stream is not None
        async with asyncio.timeout(LIMIT):
            async for event in stream.subscribe(0):
                told = decode(event)
                if isinstance(told, InboxChanged) and (told.kind, told.id, told.happened) == (
                    "run",
                    run,
                    happened,
                ):
                    return
        raise AssertionError("the stream ended")

    async def item(self, run: str) -> dict[str, Any] | None:
        return next((item for item in (await self.read())["items"] if item["id"] == run), None)


async def submitted(rig: Rig, by: dict[str, str], prompt: str) -> str:
    body = {"agent": "rehearsal", "prompt": prompt}
    answer = await rig.client.post("/v1/runs", json=body, headers=by)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]  # type: ignore[no-any-return]


async def test_a_run_is_told_as_it_changes_and_stands_where_it_came_to(rig: Rig, worker: WorkerRig) -> None:
    assert worker.database is rig.services.database
    by = await rig.bearer(rig.people["operator"])
    box = Inbox(rig, by)
    good, bad = await submitted(rig, by, "go"), await submitted(rig, by, "fail")
    await box.until("changed", good)
    await box.until("ready", good)
    await box.until("wrong", bad)
    ready, wrong = await box.item(good), await box.item(bad)
    assert ready is not None
    assert wrong is not None
    assert (ready["kind"], ready["section"], ready["state"], ready["action"]) == (
        "run",
        "ready",
        "succeeded",
        "read",
    )
    assert (ready["runId"], ready["object"], ready["agent"]) == (good, "go", "rehearsal")
    assert (wrong["section"], wrong["state"], wrong["verb"], wrong["action"]) == (
        "wrong",
        "failed",
        "Failed",
        "open",
    )
    assert wrong["why"] == "agent_failed: the agent ended"

    # Looked at by one, it is there for the others; resumed it goes for all, and comes again with its next end.
    other = Inbox(rig, await rig.bearer(rig.people["viewer"]))
    assert (await rig.client.post(f"/v1/inbox/{bad}/looked-at", headers=by)).status_code == 204
    assert await box.item(bad) is None
    assert await other.item(bad) is not None
    await box.until("looked-at", bad)
    before = wrong["since"]
    assert (await rig.client.post(f"/v1/runs/{bad}/resume", headers=by)).status_code == 200
    await worker.until(bad, lambda run: run.state is RunState.FAILED)
    async with asyncio.timeout(LIMIT):
        while (again := await box.item(bad)) is None:
            await asyncio.sleep(0.05)
    assert again["since"] >= before


async def test_what_is_under_way_is_among_the_works_and_a_cancelled_one_is_nowhere(
    rig: Rig, worker: WorkerRig
) -> None:
    by = await rig.bearer(rig.people["operator"])
    box = Inbox(rig, by)
    run = await submitted(rig, by, "hold")
    await worker.until(run, lambda found: found.state is RunState.RUNNING)
    shown = await box.read()
    (work,) = [item for item in shown["works"] if item["id"] == run]
    assert (work["kind"], work["verb"], work["object"], work["section"]) == (
        "run",
        "Works",
        "hold",
        "working",
    )
    assert shown["working"] == 1
    assert (await rig.client.get(f"/v1/runs/{run}", headers=by)).json()["title"] == "hold"
    assert (await rig.client.post(f"/v1/runs/{run}/cancel", headers=by)).status_code == 200
    await box.until("gone", run)
    shown = await box.read()
    assert [item for item in shown["works"] + shown["items"] if item["id"] == run] == []
    elsewhere = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    assert (await Inbox(rig, elsewhere).read())["items"] == []


async def test_a_server_that_wrote_nothing_tells_of_it_too_and_of_nothing_old(
    rig: Rig, worker: WorkerRig
) -> None:
    services = rig.services
    by = await rig.bearer(rig.people["operator"])
    old = await submitted(rig, by, "go")
    await worker.until(old)
    await Inbox(rig, by).until("ready", old)
    async with InboxItems(services.database, services.log, SystemClock(), "another") as items:
        stream = await items.stream("local")
        assert stream is not None
        head = stream.head
        new = await submitted(rig, by, "go")
        seen = list[str | None]()
        async with asyncio.timeout(LIMIT):
            async for event in stream.subscribe(head):
                told = decode(event)
                assert isinstance(told, InboxChanged)
                assert told.id != old
                if told.kind == "run" and told.id == new:
                    seen.append(told.happened)
                if seen.count("ready") == 2:  # of both servers, which share this log
                    break


async def test_many_at_once_are_told_as_one_change_and_none_is_passed_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "CHANGED_AT_ONCE", 7)
    by = await rig.bearer(rig.people["operator"])
    stream = await rig.services.inbox_items.stream("local")
    assert stream is not None
    head = stream.head
    count = inbox.MOST_TOLD + 14
    body = {"runs": [{"agent": "rehearsal", "prompt": "go"} for _ in range(count)]}
    answer = await rig.client.post("/v1/runs:batch", json=body, headers=by)
    assert answer.status_code == 200, answer.text
    last = answer.json()["results"][-1]["run"]["id"]
    told = list[InboxChanged]()
    async with asyncio.timeout(LIMIT):
        async for event in stream.subscribe(head):
            found = decode(event)
            assert isinstance(found, InboxChanged)
            told.append(found)
            if found.id is None or found.id == last:
                break
    assert told[-1].kind == "run"
    assert len(told) <= count


async def test_a_run_that_begins_to_hang_is_told_by_itself_once_and_again_when_it_goes_on(
    rig: Rig, worker: WorkerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = await rig.bearer(rig.people["operator"])
    box = Inbox(rig, by)
    run = await submitted(rig, by, "hold")
    await worker.until(run, lambda found: found.state is RunState.RUNNING)
    async with StuckRuns(rig.services) as watch:
        await watch.look()
        stream = await rig.services.inbox_items.stream("local")
        assert stream is not None
        head = stream.head
        await watch.look()
        assert stream.head == head  # nothing changed, nothing is told
        monkeypatch.setattr(run_events, "HUNG_MS", -(10**12))
        await watch.look()
        await box.until("wrong", run)
        item = await box.item(run)
        assert item is not None
        assert (item["section"], item["state"], item["verb"]) == ("wrong", "hung", "Hangs")
        head = stream.head
        await watch.look()
        assert stream.head == head


class StaysBehind(CountingProvider):
    """Cannot remove anything."""

    async def clean(self, run: Run, resource: RunResource) -> None:
        del run, resource
        raise StepFailed(ErrorClass.INTERNAL, "kept", "the folder is in use")


@pytest.mark.parametrize(("prompt", "state"), [("go", "succeeded"), ("hold", "cancelled")])
async def test_a_run_whose_cleanup_failed_is_among_what_went_wrong(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, state: str
) -> None:
    monkeypatch.setattr(steps, "CLEANUPS", 0)
    services = rig.services
    made = WorkerRig(services.database, StaysBehind(tmp_path / "stays"), services.sealer, SystemClock())  # type: ignore[arg-type]
    by = await rig.bearer(rig.people["operator"])
    box = Inbox(rig, by)
    async with made.working(made.worker()):
        run = await submitted(rig, by, prompt)
        if prompt == "hold":
            await made.until(run, lambda found: found.state is RunState.RUNNING)
            assert (await rig.client.post(f"/v1/runs/{run}/cancel", headers=by)).status_code == 200
        await box.until("wrong", run)
    item = await box.item(run)
    assert item is not None
    assert (item["section"], item["state"], item["verb"], item["action"]) == (
        "wrong",
        "cleanup_failed",
        "Cleanup failed",
        "open",
    )
    assert item["why"] == "what was made for it could not be removed"
    assert (await rig.client.get(f"/v1/runs/{run}", headers=by)).json()["state"] == state
