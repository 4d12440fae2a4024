"""Reports of runners become a run's events: sealed, once, whole, read and followed at any server, on both databases."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.rig import BOTH, Rig, open_rig
from tests.server.test_runner_commands import permission
from tests.store.canary import logged, new_canary, search, stored

from legation.approvals.approval import new_approval_id
from legation.runs import packs
from legation.runs.events import LOOP_LENGTH, PAGE_CAP, RunFeed
from legation.runs.events import SQL as EVENTS_SQL
from legation.runs.run import SQL, find_run
from legation.runs.steps import _may_have_acted, _shut_out
from legation.store.database.transaction import rows
from legation.wire.api.runs import RunSubmission
from legation.wire.callbacks import signed_headers, token_digest

pytestmark = pytest.mark.heavy

TOKEN = "a-token-of-a-runner"


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with asyncio.timeout(170), open_rig(request.param, tmp_path, request) as made:
        yield made


class Reporting:
    """A run with a runner, as a worker has left them, and what the runner reports."""

    def __init__(self, rig: Rig, run: str) -> None:
        self.rig = rig
        self.run = run
        self.runner = f"{run}-1"
        self.nonces = 0

    @classmethod
    async def of(cls, rig: Rig, prompt: str = "go") -> Reporting:
        by = await rig.principal(rig.people["operator"])
        done = await rig.services.runs.submit(by, RunSubmission(agent="rehearsal", prompt=prompt))
        now = rig.clock.now_ms()
        made = cls(rig, done.run_id)
        await rig.services.database.transact(
            rows,
            SQL.register_runner(
                id=made.runner,
                workspace="local",
                token_digest=token_digest(TOKEN),
                machine="m1",
                run=made.run,
                attempt=1,
                now=now,
            ),
        )
        await made.set_state("running")
        return made

    async def set_state(self, state: str) -> None:
        now = self.rig.clock.now_ms()
        await self.rig.rows(
            f"update run set state = '{state}', attempt = 1, started_at = {now} where id = '{self.run}'"
        )

    async def report(
        self, sequence: int, *updates: object, kind: str = "session_update", **more: object
    ) -> Any:
        body = {
            "kind": kind,
            "runId": self.run,
            "taskId": "t",
            "sandboxId": "b",
            "promptId": self.runner,
            "sequence": sequence,
            "notifications": [{"sessionId": "s", "update": update} for update in updates],
            "snapshot": {},
            **more,
        }
        content = json.dumps(body).encode()
        self.nonces += 1
        headers = signed_headers(TOKEN, content, self.rig.clock.now_ms(), f"nonce-{self.nonces:08}")
        path = f"/v1/runs/{self.runner}/reports"
        answer = await self.rig.client.post(path, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self, below: str = "", who: str = "viewer") -> httpx2.Response:
        headers = await self.rig.bearer(self.rig.people[who])
        return await self.rig.client.get(f"/v1/runs/{self.run}{below}", headers=headers)


def said(text: str) -> dict[str, object]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


def called(number: int, title: str = "Run tests") -> dict[str, object]:
    return {"sessionUpdate": "tool_call", "toolCallId": f"c{number}", "title": title, "rawInput": {"a": 1}}


async def test_reports_become_events_once_with_usage_and_the_end(rig: Rig) -> None:
    made = await Reporting.of(rig)
    await made.report(1, said("one"), said("two"))
    cost = {
        "sessionUpdate": "usage_update",
        "used": 1,
        "size": 2,
        "cost": {"amount": 0.25, "currency": "USD"},
    }
    await made.report(2, cost, {"sessionUpdate": "of_tomorrow"})
    assert not (await made.report(2, cost))["fresh"]
    assert not (await made.report(1, said("late")))["fresh"]
    usage = {"inputTokens": 7, "outputTokens": 5}
    await made.report(3, kind="prompt_complete", stopReason="end_turn", usage=usage)
    page = (await made.get("/events")).json()
    assert [(each["seq"], each["attempt"], each["type"]) for each in page["items"]] == [
        (1, 1, "agent-message-chunk"),
        (2, 1, "agent-message-chunk"),
        (3, 1, "usage-update"),
        (4, 1, "unrecognized-update"),
        (5, 1, "prompt-finished"),
    ]
    assert page["items"][1]["payload"] == {"sessionId": "s", "update": said("two")}
    assert page["items"][4]["payload"]["usage"] == usage
    assert page["next"] is None
    first = (await made.get("/events?limit=2")).json()
    assert ([each["seq"] for each in first["items"]], first["next"]) == ([1, 2], "2")
    bare = (await made.get("/events?after=3&content=false")).json()["items"]
    assert [(each["seq"], each["payload"]) for each in bare] == [(4, None), (5, None)]
    assert (await made.get("/events?after=6")).status_code == 409
    ledger = {
        (row["source"], row["kind"], row["user_id"]): row["amount"]
        for row in await rig.rows("select source, kind, user_id, amount from usage_ledger")
    }
    user = rig.people["operator"]
    assert ledger == {
        ("attempt:1", "cost_microusd", user): 250_000,
        ("event:5", "input_tokens", user): 7,
        ("event:5", "output_tokens", user): 5,
    }


async def test_a_line_above_the_page_cap_is_a_sealed_blob_and_given_back_whole(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await Reporting.of(rig)
    canary = new_canary("long").replace('"', "'")
    long = said(canary + "x" * PAGE_CAP)
    await made.report(1, said("before"))
    await made.report(2, long)
    await made.report(3, said("behind"))
    (row,) = await rig.rows("select seq, blob, bytes from run_event where blob is not null")
    assert (row["seq"], row["bytes"] > PAGE_CAP) == (2, True)
    sealed = await rig.services.blobs.read(row["blob"], 2 * PAGE_CAP)
    assert search({"blob": sealed}, [canary]) == []
    items = (await made.get("/events")).json()["items"]
    assert [each["payload"]["update"] for each in items] == [said("before"), long, said("behind")]
    # Many of them are read some at a time, however many one page names; how it gets on is told without any.
    for number in range(4, 8):
        await made.report(number, said("y" * PAGE_CAP))
    store, opened = rig.services.run_events, list[str]()
    read = rig.services.blobs.read

    async def counted(name: str, most: int) -> bytes:
        opened.append(name)
        return await read(name, most)

    monkeypatch.setattr(rig.services.blobs, "read", counted)
    assert (await made.get()).json()["liveness"] == "working"
    assert opened == []
    first = await store.read("local", made.run, 1)
    assert [event.seq for event in first] == [2, 3, 4]
    assert len(opened) == 2
    seen = [each["seq"] for each in items]
    while seen[-1] < 7:
        page = (await made.get(f"/events?after={seen[-1]}")).json()
        seen += [each["seq"] for each in page["items"]]
    assert seen == [*range(1, 8)]


async def test_events_are_followed_live_from_any_server_until_the_run_has_ended(rig: Rig) -> None:
    made = await Reporting.of(rig)
    await made.report(1, said("one"))
    other = RunFeed(rig.services.database, rig.services.run_events)  # of another server
    async with other:
        source = await other.find(made.run, "local")
        assert source is not None
        assert (source.head, source.ended) == (1, False)
        news = source.news
        await made.report(2, said("two"), said("three"))
        await news.wait()
        assert source.head == 3
        assert [event.seq for event in await source.read_older(1)] == [2, 3]
        assert await other.find(made.run, rig.other) is None
    follow = asyncio.create_task(made.get("/events/sse?after=1"))
    await made.report(3, said("four"))
    await made.set_state("succeeded")
    body = (await follow).text
    frames = [frame for frame in body.split("\n\n") if frame.startswith("id: ")]
    assert [frame.split("\n")[0] for frame in frames] == ["id: 2", "id: 3", "id: 4"]
    assert 'event: end\ndata: {"reason":"ended"}' in body
    # Among many, its end is its own: the body goes on for the others, and ends with the last of them.
    second = await Reporting.of(rig)
    await second.report(1, said("of another"))
    headers = await rig.bearer(rig.people["viewer"])
    many = f"/v1/stream?streams={made.run}@3,{second.run}@0"
    both = asyncio.create_task(rig.client.get(many, headers=headers))
    await second.report(2, said("still heard"))
    await second.set_state("failed")
    told = (await both).text
    for run in (made.run, second.run):
        assert f'event: end\ndata: {{"stream":"{run}","reason":"ended"}}' in told
    assert "still heard" in told
    assert "event: bye" not in told


async def test_packed_events_are_paged_and_replayed_as_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 1)  # a pack for each report
    made = await Reporting.of(rig)
    await made.report(1, said("one"), said("two"), said("three"))
    await made.report(2, said("four"))
    await made.report(3, said("y" * PAGE_CAP))
    await made.report(4, kind="prompt_complete", stopReason="end_turn")
    await made.set_state("succeeded")

    async def read() -> list[Any]:
        pages = list[Any]()
        after: str | None = "0"
        while after is not None:
            pages.append((await made.get(f"/events?limit=2&after={after}")).json())
            after = pages[-1]["next"]
        return [pages, *[(await made.get(f"/events/sse?after={number}")).text for number in range(6)]]

    before, services = await read(), rig.services
    run = await services.database.read(find_run, "local", made.run)
    assert run is not None
    packing = packs.EventPacks(services.database, services.content, services.blobs)
    while (pack := await packing.next(run)) is not None:
        await services.database.transact(packing.intend, pack, 1)
        size = await packing.put(pack)
        await services.database.transact(packing.keep, pack, size, 2)
    assert [row["page"] for row in await rig.rows("select page from run_pack order by page")] == [1, 2, 3, 4]
    assert await rig.rows("select 1 as one from content_page where stream = 'events'") == []
    assert await read() == before
    # One that is missing is told, with its name and what to do, and nothing behind it is given in its place.
    name = f"local/runs/{made.run}/events-1-3"
    await services.blobs.delete(name)
    answer = await made.get("/events?after=2")
    assert answer.status_code == 500
    assert f"cannot read events of {made.run}: blob {name} is missing" in answer.json()["detail"]
    assert len((await made.get("/events?after=3")).json()["items"]) == 3
    assert (
        await made.get("/events/sse?after=2")
    ).status_code == 500  # and no stream that ends again and again
    assert (await made.get("/events/sse?after=3")).status_code == 200


async def test_liveness_is_told_by_progress(rig: Rig) -> None:
    made = await Reporting.of(rig)

    async def liveness() -> str:
        return str((await made.get()).json()["liveness"])

    assert await liveness() == "working"
    rig.clock.advance(120)
    assert await liveness() == "waiting-on-provider"
    await made.report(1, called(1))
    rig.clock.advance(120)
    assert await liveness() == "working"  # a tool takes its time
    rig.clock.advance(600)
    assert await liveness() == "hung"
    await made.report(2, *(called(number) for number in range(2, LOOP_LENGTH)))
    assert await liveness() == "working"
    await made.report(3, called(LOOP_LENGTH))
    assert await liveness() == "looping"
    await made.report(4, called(99, "Another"))
    assert await liveness() == "working"
    for state, wanted in (
        ("waiting", "waiting-on-you"),
        ("suspended", "waiting-on-provider"),
        ("paused", "idle"),
        ("succeeded", "idle"),
    ):
        await made.set_state(state)
        assert await liveness() == wanted


async def test_a_run_that_waited_for_an_answer_or_is_resumed_neither_hangs_nor_loops_by_what_was_before(
    rig: Rig,
) -> None:
    made = await Reporting.of(rig)

    async def liveness() -> str:
        return str((await made.get()).json()["liveness"])

    await made.report(1, *(called(number) for number in range(LOOP_LENGTH)))
    assert await liveness() == "looping"
    rig.clock.advance(1800)
    now = rig.clock.now_ms()
    await rig.rows(
        f"update run set started_at = {now}, changed_at = {now} where id = '{made.run}'"
    )  # another try
    assert await liveness() == "working"
    await made.report(2, called(99, "Another"))
    rig.clock.advance(1800)
    await rig.rows(
        f"update run set changed_at = {rig.clock.now_ms()} where id = '{made.run}'"
    )  # it was answered
    assert await liveness() == "working"
    rig.clock.advance(601)
    assert await liveness() == "hung"


async def test_a_run_that_hangs_or_loops_stands_among_what_went_wrong(rig: Rig) -> None:
    made = await Reporting.of(rig)
    by = await rig.bearer(rig.people["operator"])

    async def shown() -> tuple[str, str, str]:
        inbox = (await rig.client.get("/v1/inbox", headers=by)).json()
        (item,) = [each for each in (*inbox["items"], *inbox["works"]) if each["id"] == made.run]
        return item["section"], item["state"], item["verb"]

    assert await shown() == ("working", "working", "Works")
    rig.clock.advance(700)
    assert await shown() == ("wrong", "hung", "Hangs")
    await made.report(1, *(called(number) for number in range(LOOP_LENGTH)))
    assert await shown() == ("wrong", "looping", "Loops")
    await made.report(2, called(99, "Another"))
    assert await shown() == ("working", "working", "Works")


async def test_no_canary_is_in_any_table_log_error_or_audit_row(
    rig: Rig, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key, header, prompt, output, thought, name = map(
        new_canary, ("key", "header", "prompt", "output", "payload", "idempotency")
    )
    name = name[:60].replace('"', "").replace("é", "")
    headers = await rig.bearer(rig.people["operator"])
    good = {
        "agent": "claude",
        "prompt": prompt,
        "mcpServers": {"m": {"type": "remote", "url": "https://m.example"}},
        "secrets": {
            "anthropic": {"apiKey": key},
            "mcpServers": [{"name": "m", "headers": {"Authorization": header}}],
        },
        "idempotencyKey": name,
    }
    told = [(await rig.client.post("/v1/runs", json=good, headers=headers)).text]
    template = {"name": "t", "run": {"agent": "rehearsal", "prompts": [prompt]}}
    told += [(await rig.client.post("/v1/templates", json=template, headers=headers)).text]
    wrong: list[dict[str, Any]] = [
        {**good, "agent": "rehearsal"},
        {**good, "prompt": prompt + "other"},
        {**good, "secrets": {**good["secrets"], "openai": {"apiKey": key}}},  # type: ignore[dict-item]
        {**good, "secrets": {"anthropic": {"apiKey": [key]}}},
        {
            **good,
            "secrets": {
                "anthropic": {"apiKey": key},
                "mcpServers": [{"name": "m", "headers": {"é": header}}],
            },
        },
        {**good, "variables": {"token": key}},
    ]
    for body in wrong:
        answer = await rig.client.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code in (400, 409), answer.text
        told.append(answer.text)
    made = await Reporting.of(rig, prompt)
    await made.report(1, said(output), {"sessionUpdate": "agent_thought_chunk", "x": thought})
    await made.report(2, kind="prompt_failed", error={"message": output, "code": output}, stderrTail=thought)
    shown = (await made.get()).json()
    assert (
        shown.pop("title") == prompt.splitlines()[0].strip()
    )  # the one thing of it that was written by somebody
    told += [json.dumps(shown), (await made.get("/events?content=false")).text]
    audit = await rig.client.get("/v1/audit", headers=await rig.bearer(rig.people["owner"]))
    places = {
        **await stored(rig.services.database, request),  # type: ignore[arg-type]
        "log": logged(caplog),
        "told": "".join(told).encode(),
        "audit": audit.content,
    }
    assert search(places, [key, header, prompt, output, thought, name]) == []
    assert output in (await made.get("/events")).json()["items"][0]["payload"]["update"]["content"]["text"]


async def test_decisions_changes_and_details_of_a_run_are_told(rig: Rig) -> None:
    made = await Reporting.of(rig, "#!rehearse\n\nFix the cache\nand more")
    assert (await made.get("/changes")).json()["attempt"] is None
    approval = new_approval_id(rig.clock.now_ms())
    action = {"agent": "rehearsal", "tool": "Write", "kind": "edit", "params": {"path": "/repo/a.txt"}}
    asked = {"id": approval, "title": "Write a.txt", "action": action, "options": [], "askedAt": 5}
    await made.report(1, said("one"), kind="session_update")
    await made.report(2, kind="permission_request", permission={**asked, "toolCallId": "c1"})
    user = rig.people["operator"]
    answer = {"id": approval, "outcome": "denied", "by": f"user:{user}", "reason": "careful:edit"}
    await made.report(3, kind="permission_resolved", permission=answer)
    patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new\n"
    changes = {"patch": patch, "files": [{"path": "a.txt", "status": "modified", "added": 1, "removed": 1}]}
    usage = {"inputTokens": 7, "outputTokens": 5}
    await made.report(4, kind="prompt_complete", stopReason="end_turn", usage=usage, changes=changes)
    assert not (await made.report(3, kind="permission_resolved", permission=answer))["fresh"]
    items = (await made.get("/events")).json()["items"]
    assert [each["type"] for each in items] == [
        "agent-message-chunk",
        "permission-asked",
        "permission-answered",
        "prompt-finished",
    ]
    assert items[1]["payload"]["toolCallId"] == "c1"
    assert items[2]["payload"]["byName"]
    told = (await made.get("/changes")).json()
    assert (told["attempt"], told["patch"]) == (1, patch)
    assert told["files"] == [
        {"path": "a.txt", "status": "modified", "added": 1, "removed": 1, "binary": False}
    ]
    details = (await made.get("/details")).json()
    assert details["submission"]["prompts"] == ["#!rehearse\n\nFix the cache\nand more"]
    assert details["usage"] == {"inputTokens": 7, "outputTokens": 5, "costUsd": None}
    assert [each["kind"] for each in details["cleanup"]] == ["secrets"]
    headers = await rig.bearer(rig.people["viewer"])
    (row,) = (await rig.client.get("/v1/runs?details=true", headers=headers)).json()["items"]
    assert (row["id"], row["title"], row["liveness"]) == (made.run, "Fix the cache", "working")
    (row,) = (await rig.client.get("/v1/runs", headers=headers)).json()["items"]
    assert row["title"] is None
    pages = await rig.rows("select body from content_page")
    assert not any(b"old" in bytes(each["body"]) for each in pages)


async def test_an_attempt_may_have_acted_once_more_than_a_look_was_let_pass(rig: Rig) -> None:
    """The rule by which a run begins again by itself when its machine is lost."""
    made = await Reporting.of(rig)
    run = await rig.services.database.read(find_run, "local", made.run)
    assert run is not None
    owner = await rig.bearer(rig.people["owner"])

    async def ask(sequence: int, kind: str) -> str:
        asked = permission(rig, kind, f"/repo/{sequence}")
        await made.report(sequence, kind="permission_request", permission=asked)
        return str(asked["id"])

    async def answer(approval: str, word: str) -> None:
        answered = await rig.client.post(f"/approvals/{approval}/{word}", json={}, headers=owner)
        assert answered.status_code == 200, answered.text

    async def acted() -> bool:
        return await rig.services.database.read(_may_have_acted, run)

    assert not await acted()
    passed = await ask(1, "read")
    assert [
        row["status"] for row in await rig.rows(f"select status from keyed_call where id = '{passed}'")
    ] == ["passed"]
    assert not await acted()
    await answer(await ask(2, "edit"), "deny")
    assert not await acted()
    asked = await ask(3, "edit")
    assert not await acted()  # nobody has answered it
    await answer(asked, "approve")
    assert await acted()  # whether or not it was used: it may be under way
    other = await Reporting.of(rig)
    found = await rig.services.database.read(find_run, "local", other.run)
    assert found is not None
    assert not await rig.services.database.read(_may_have_acted, found)
    await rig.services.database.transact(
        rows,
        EVENTS_SQL.add_event(
            workspace="local",
            run=other.run,
            seq=1,
            attempt=1,
            report=1,
            type="unasked-effect",
            bytes=1,
            at=1,
            blob=None,
        ),
    )
    assert await rig.services.database.read(_may_have_acted, found)


async def test_a_runner_that_was_shut_out_is_not_heard_any_more(rig: Rig) -> None:
    made = await Reporting.of(rig)
    run = await rig.services.database.read(find_run, "local", made.run)
    assert run is not None
    await made.report(1, said("one"))
    await rig.services.database.transact(_shut_out, run, rig.clock.now_ms())
    assert not (await made.report(2, said("two")))["fresh"]
    approval = new_approval_id(rig.clock.now_ms())
    action = {"agent": "rehearsal", "tool": "Write", "kind": "edit", "params": {"path": "/repo/a.txt"}}
    asked = {"id": approval, "title": "a", "action": action, "options": [], "askedAt": 5}
    await made.report(3, kind="permission_request", permission=asked)
    assert await rig.rows("select id from approval") == []
    assert [each["seq"] for each in (await made.get("/events")).json()["items"]] == [1]
