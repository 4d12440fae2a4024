"""The permission channel at the server: what a runner asks is an approval, its answer a command, and so is what people say."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runner.caller_server import TOKEN
from tests.server.rig import BOTH, Rig, open_rig
from tests.server.test_runners import body

from legation.clock import new_id
from legation.errors import Conflict, InvalidParams
from legation.runner.commands import RunnerCommands
from legation.runner.receiver import RunnerRow, add_runner, find_runner
from legation.wire.callbacks import signed_headers, token_digest

pytestmark = pytest.mark.heavy

LIMIT = 60.0
POLICY = """
name: p
loop: off
rules:
  - {id: reads, kind: read, action: allow}
  - {id: secrets, when: {paths: {under: /etc}}, action: deny, message: never there}
  - {id: asks, action: human_approval, timeout: 1h}
"""
PROMPT = "a prompt that stands in no plain table"


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with (
        asyncio.timeout(170),
        open_rig(request.param, tmp_path / "data", request, policy=str(policy)) as made,
    ):
        for name in ("run_1", "run_2"):
            await made.services.database.transact(
                add_runner, name, "local", token_digest(TOKEN + name), "box", now_ms=made.clock.now_ms()
            )
        yield made


async def runner(rig: Rig, name: str = "run_1") -> RunnerRow:
    found = await rig.services.database.read(find_runner, name)
    assert found is not None
    return found


def commands(rig: Rig) -> RunnerCommands:
    services = rig.services
    return RunnerCommands(services.database, services.sealer, services.clock, services.asks)


def headers(rig: Rig, content: bytes = b"", name: str = "run_1") -> dict[str, str]:
    return signed_headers(TOKEN + name, content, rig.clock.now_ms(), str(uuid.uuid4()))


class Sender:
    """A runner as the server sees it."""

    def __init__(self, rig: Rig, name: str = "run_1") -> None:
        self.rig, self.name, self.sequence = rig, name, 0

    async def report(self, kind: str, **more: object) -> httpx2.Response:
        if kind != "heartbeat":
            self.sequence += 1
        return await self.send(body(self.sequence if kind != "heartbeat" else 0, kind, **more))

    async def send(self, content: bytes) -> httpx2.Response:
        path = f"/v1/runs/{self.name}/reports"
        return await self.rig.client.post(
            path, content=content, headers=headers(self.rig, content, self.name)
        )

    async def poll(self, after: int = 0, wait: int = 0) -> list[dict[str, Any]]:
        path = f"/v1/runs/{self.name}/commands?after={after}&wait={wait}"
        answer = await self.rig.client.get(path, headers=headers(self.rig, b"", self.name))
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["commands"]
        return found

    async def use(self, command: int, resolved: object = None) -> httpx2.Response:
        content = json.dumps({"resolved": resolved}).encode()
        path = f"/v1/runs/{self.name}/commands/{command}/use"
        return await self.rig.client.post(
            path, content=content, headers=headers(self.rig, content, self.name)
        )


def permission(rig: Rig, kind: str = "edit", path: str = "/repo/a", **more: object) -> dict[str, Any]:
    now = rig.clock.now_ms()
    return {
        "id": new_id("apr", now_ms=now),
        "title": "Write a",
        "action": {
            "agent": "claude", "tool": "Write", "kind": kind, "params": {"path": path}, "paths": [path]
        },
        "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}],
        "askedAt": now,
        "resolved": resolved(path),
        **more,
    }  # fmt: skip


def resolved(path: str = "/repo/a") -> dict[str, Any]:
    return {
        "workspace": "/repo",
        "cwd": "/repo",
        "paths": [path],
        "folders": {"/repo": "/repo", "/etc": "/etc"},
    }


async def answered(rig: Rig, approval: str, verb: str = "approve") -> None:
    who = await rig.bearer(rig.people["owner"])
    answer = await rig.client.post(f"/approvals/{approval}/{verb}", json={}, headers=who)
    assert answer.status_code == 200, answer.text


async def approvals(rig: Rig) -> list[tuple[str, str, str, bool]]:
    found = await rig.rows("select id, status, waiter, consumed_at from approval order by id")
    return [(row["id"], row["status"], row["waiter"], row["consumed_at"] is not None) for row in found]


async def test_a_permission_is_one_approval_under_its_id_and_its_answer_one_command(rig: Rig) -> None:
    sender, asked = Sender(rig), permission(rig)
    content = body(1, "permission_request", permission=asked)
    for _ in range(3):
        assert (await sender.send(content)).status_code == 200
    assert await approvals(rig) == [(asked["id"], "pending", "run:run_1", False)]
    assert await sender.poll() == []
    held = asyncio.create_task(sender.poll(wait=50))
    await asyncio.sleep(0)
    await answered(rig, asked["id"])
    async with asyncio.timeout(LIMIT):
        [command] = await held
    assert (command["id"], command["kind"], command["permission"]) == (1, "answer", asked["id"])
    assert (command["outcome"], command["mustUse"]) == ("approved", True)
    assert await sender.poll() == [command]  # again, until it is acknowledged
    assert await sender.poll(after=1) == []
    assert (await sender.send(content)).status_code == 200  # a repetition that is late changes nothing
    assert await sender.poll(after=1) == []
    assert (await Sender(rig, "run_2").use(1, resolved())).status_code == 404
    for _ in range(2):
        used = await sender.use(1, resolved())
        assert used.status_code == 200, used.text
    assert await approvals(rig) == [(asked["id"], "approved", "run:run_1", True)]


async def test_whoever_decides_sees_what_the_agent_says_it_would_change(rig: Rig) -> None:
    diff = {"path": "/repo/a", "oldText": "one\n", "newText": "two\n"}
    asked = permission(rig, diffs=[diff], turn="trn_1")
    await Sender(rig).report("permission_request", permission=asked)
    who = await rig.bearer(rig.people["owner"])
    detail = (await rig.client.get(f"/approvals/{asked['id']}", headers=who)).json()
    [shown] = detail["diffs"]
    assert (shown["old_text"], shown["new_text"], shown["source"]) == ("one\n", "two\n", "agent")
    assert [row["turn_id"] for row in await rig.rows("select turn_id from approval")] == ["trn_1"]


async def test_a_yes_that_the_agent_would_take_for_ever_is_given_by_no_rule(rig: Rig) -> None:
    options = [{"optionId": "y", "name": "Always", "kind": "allow_always"}]
    sender = Sender(rig)
    await sender.report("permission_request", permission=permission(rig, "read", options=options))
    [command] = await sender.poll()
    assert command["outcome"] == "denied"


async def test_an_approval_is_not_used_where_a_path_leads_elsewhere_by_then(rig: Rig) -> None:
    sender, asked = Sender(rig), permission(rig)
    await sender.report("permission_request", permission=asked)
    await answered(rig, asked["id"])
    [command] = await sender.poll()
    moved = await sender.use(command["id"], {**resolved(), "paths": ["/etc/passwd"]})
    assert moved.status_code in (403, 409), moved.text
    assert (await approvals(rig))[0][3] is False


@pytest.mark.parametrize(
    ("kind", "path", "outcome"), [("read", "/repo/a", "approved"), ("edit", "/etc/passwd", "denied")]
)
async def test_what_the_rules_decide_is_answered_at_once(
    rig: Rig, kind: str, path: str, outcome: str
) -> None:
    sender, asked = Sender(rig), permission(rig, kind, path)
    await sender.report("permission_request", permission=asked)
    [command] = await sender.poll()
    assert (command["outcome"], command["permission"]) == (outcome, asked["id"])
    if outcome == "approved":
        assert (await sender.use(1, resolved(path))).status_code == 200
    else:
        assert command["message"] == "never there"
    assert await approvals(rig) == []


async def test_what_cannot_be_judged_is_denied_and_the_runner_goes_on(rig: Rig) -> None:
    sender = Sender(rig)
    wrong = [
        permission(rig, resolved={**resolved(), "paths": []}),
        permission(rig, action={"agent": "a b", "tool": "x"}),
        permission(rig, action={"agent": "a", "tool": ""}, resolved=None),
        permission(rig, title="x" * 1_100_000),
    ]
    for each in wrong:
        assert (await sender.report("permission_request", permission=each)).status_code == 200
    found = await sender.poll()
    assert [each["permission"] for each in found] == [each["id"] for each in wrong]
    assert {each["outcome"] for each in found} == {"denied"}
    assert await approvals(rig) == []


async def test_an_id_of_anothers_approval_gives_nothing(rig: Rig) -> None:
    sender, other, asked = Sender(rig), Sender(rig, "run_2"), permission(rig)
    await sender.report("permission_request", permission=asked)
    await other.report("permission_request", permission=asked)
    await answered(rig, asked["id"])
    [told] = await other.poll()
    assert told["outcome"] == "denied"
    assert (await other.use(1, resolved())).status_code != 200
    [good] = await sender.poll()
    assert good["outcome"] == "approved"


async def test_what_nobody_waits_for_any_more_cannot_be_answered(rig: Rig) -> None:
    sender, first, second = Sender(rig), permission(rig), permission(rig, path="/repo/b")
    await sender.report("permission_request", permission=first)
    await sender.report("permission_request", permission=second)
    over = {"id": first["id"], "outcome": "cancelled", "by": "client"}
    assert (await sender.report("permission_resolved", permission=over)).status_code == 200
    assert [each[1] for each in await approvals(rig)] == ["cancelled", "pending"]
    await sender.report("prompt_failed", error={"message": "killed"})
    assert [each[1] for each in await approvals(rig)] == ["cancelled", "superseded"]
    late = permission(rig)
    assert (await sender.report("permission_request", permission=late)).status_code == 200
    assert len(await approvals(rig)) == 2  # behind its end nothing is asked


async def test_heartbeats_keep_what_it_waits_for_alive(rig: Rig) -> None:
    sender = Sender(rig)
    await sender.report("permission_request", permission=permission(rig))
    before = await rig.rows("select id, seen from holder where server is null")
    assert len(before) == 1
    await rig.rows("update pulse set ms = ms + 1000 where id = 1")
    await sender.report("heartbeat")
    [after] = await rig.rows("select id, seen from holder where server is null")
    assert after["seen"] > before[0]["seen"]


async def test_what_people_tell_it_comes_in_order_and_stands_in_no_plain_table(rig: Rig) -> None:
    sender, box, who = Sender(rig), commands(rig), await runner(rig)
    held = asyncio.create_task(sender.poll(wait=50))
    await asyncio.sleep(0)
    assert await box.put(who, "pause") == 1
    async with asyncio.timeout(LIMIT):
        assert await held == [{"id": 1, "kind": "pause"}]
    assert await box.put(who, "resume") == 2
    assert [await box.put(who, "message", prompt=PROMPT, key="k") for _ in range(2)] == [3, 3]
    at_once = await asyncio.gather(*[box.put(who, "message", prompt=PROMPT, key="same") for _ in range(5)])
    assert set(at_once) == {4}
    assert await box.put(who, "cancel") == 5
    found = await sender.poll(after=1)
    assert [each["id"] for each in found] == [2, 3, 4, 5]
    assert found[1] == {"id": 3, "kind": "message", "prompt": PROMPT}
    [row] = await rig.rows("select acked, commands from runner where id = 'run_1'")
    assert (row["acked"], row["commands"]) == (1, 5)
    pages = await rig.rows("select body from content_page")
    assert len(pages) == 5
    assert not any(PROMPT.encode() in bytes(each["body"]) for each in pages)
    await sender.report("prompt_complete", stopReason="end_turn")
    with pytest.raises(Conflict):
        await box.put(who, "cancel")
    with pytest.raises(InvalidParams):
        await box.put(who, "message")


async def test_a_poll_that_is_forged_stale_or_sent_again_is_401(rig: Rig) -> None:
    path = "/v1/runs/run_1/commands"
    good = headers(rig)
    for wrong in (
        {},
        headers(rig, b"x"),
        headers(rig, b"", "run_2"),
        signed_headers(TOKEN + "run_1", b"", rig.clock.now_ms() - 301_000, str(uuid.uuid4())),
    ):
        assert (await rig.client.get(path, headers=wrong)).status_code == 401
    assert (await rig.client.get(path, headers=good)).status_code == 200
    assert (await rig.client.get(path, headers=good)).status_code == 401
    used = await rig.client.post(f"{path}/1/use", content=b"{}", headers=headers(rig, b"{} "))
    assert used.status_code == 401
