"""Reports to a real application: taken when they are a runner's own, refused with nothing left when they are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.runner.caller_server import TOKEN
from tests.runner.rig import IDS, QUICK
from tests.server.rig import BOTH, Rig, open_rig

from legation.clock import SystemClock
from legation.runner.callback import CallbackAnswer
from legation.runner.receiver import add_runner, find_runner
from legation.runner.reporter import Reporter, Spool, SpoolLog
from legation.wire.callbacks import (
    MOST_BYTES,
    NONCE,
    SIGNATURE,
    TIMESTAMP,
    WINDOW_MS,
    PromptEnd,
    signed_headers,
    token_digest,
)
from legation.wire.events import params_draft

pytestmark = pytest.mark.heavy

PATH = "/v1/runs/run_1/reports"


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with asyncio.timeout(110), open_rig(request.param, tmp_path, request) as made:
        now = made.clock.now_ms()
        await made.services.database.transact(
            add_runner, "run_1", "local", token_digest(TOKEN), "box", now_ms=now
        )
        yield made


def body(sequence: int, kind: str = "session_update", **more: object) -> bytes:
    ids = {"runId": "run_1", "taskId": "t", "sandboxId": "b", "promptId": "p"}
    return json.dumps(
        {"kind": kind, **ids, "sequence": sequence, "notifications": [], "snapshot": {}, **more}
    ).encode()


async def post(rig: Rig, content: bytes, headers: dict[str, str], path: str = PATH) -> httpx2.Response:
    return await rig.client.post(path, content=content, headers=headers)


def signed(rig: Rig, content: bytes, *, nonce: str, token: str = TOKEN, off: int = 0) -> dict[str, str]:
    return signed_headers(token, content, rig.clock.now_ms() + off, nonce)


async def head(rig: Rig) -> tuple[int, int | None, int]:
    found = await rig.services.database.read(find_runner, "run_1")
    assert found is not None
    nonces = await rig.rows("select nonce from runner_nonce")
    return found.head, found.ended_at, len(nonces)


async def test_reports_are_taken_once_and_in_order(rig: Rig) -> None:
    for number, (sequence, fresh, missing) in enumerate(
        [(1, True, 0), (2, True, 0), (2, False, 0), (5, True, 2), (4, False, 0)]
    ):
        content = body(sequence)
        answer = await post(rig, content, signed(rig, content, nonce=f"nonce-{number:04}"))
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["fresh"], told.get("missing", 0)) == (fresh, missing)
    assert told["head"] == 5
    beat = body(0, "heartbeat")
    assert (await post(rig, beat, signed(rig, beat, nonce="a-heartbeat"))).status_code == 200
    end = body(6, "prompt_complete", stopReason="end_turn")
    assert (await post(rig, end, signed(rig, end, nonce="the-very-end"))).status_code == 200
    assert (await head(rig))[:2] == (6, rig.clock.now_ms())


async def test_forged_stale_or_replayed_reports_are_401_and_leave_no_row(rig: Rig) -> None:
    content = body(1)
    good = signed(rig, content, nonce="nonce-0001")
    forged = [
        {**good, SIGNATURE: "sha256=" + "0" * 64},
        {**good, SIGNATURE: good[SIGNATURE].removeprefix("sha256=")},
        {**good, NONCE: "nonce-0002"},
        {**good, TIMESTAMP: str(int(good[TIMESTAMP]) + 1)},
        {**good, "authorization": "Bearer another"},
        {**good, "authorization": f"Basic {TOKEN}"},
        signed(rig, content, nonce="nonce-0003", token="another"),
        signed(rig, content, nonce="nonce-0004", off=-WINDOW_MS - 1),
        signed(rig, content, nonce="nonce-0005", off=WINDOW_MS + 1),
        signed(rig, content, nonce="short"),
        *[
            {name: value for name, value in good.items() if name != left_out}
            for left_out in (SIGNATURE, NONCE, TIMESTAMP, "authorization")
        ],
    ]
    for headers in forged:
        answer = await post(rig, content, headers)
        assert answer.status_code == 401, (headers, answer.text)
    assert (await post(rig, content + b" ", good)).status_code == 401
    other = await post(rig, content, good, "/v1/runs/run_2/reports")
    assert other.status_code == 401
    assert await head(rig) == (0, None, 0)
    assert (await post(rig, content, good)).status_code == 200
    replayed = await post(rig, content, good)
    assert replayed.status_code == 401
    assert await head(rig) == (1, None, 1)


async def test_a_report_above_its_cap_is_413_and_who_has_no_token_is_not_read(rig: Rig) -> None:
    content = b"x"
    headers = {**signed(rig, content, nonce="nonce-0001"), "content-length": str(MOST_BYTES + 1)}
    assert (await post(rig, content, headers)).status_code == 413
    stranger = {**headers, "authorization": "Bearer another"}
    assert (await post(rig, content, stranger)).status_code == 401
    assert await head(rig) == (0, None, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        body(0),
        body(-1),
        body(3, "heartbeat"),
        body(1, "of_tomorrow"),
        b'{"kind":',
        body(2**64),
    ],
)
async def test_what_is_no_report_is_refused(rig: Rig, content: bytes) -> None:
    answer = await post(rig, content, signed(rig, content, nonce="nonce-0001"))
    assert answer.status_code == 400, answer.text
    assert await head(rig) == (0, None, 0)


class RigCallback:
    """The way to an application in this process."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def post(self, content: bytes, headers: Any, limit: float) -> CallbackAnswer:
        del limit
        answer = await post(self._rig, content, headers())
        return CallbackAnswer(answer.status_code, answer.text if answer.status_code != 200 else "")


async def test_a_reporter_reports_to_it(rig: Rig, tmp_path: Path) -> None:
    callback: Any = RigCallback(rig)
    async with SpoolLog(tmp_path / "spool", Spool(2**40), SystemClock(), lambda _: None) as log:
        stream = await log.stream("session")
        async with Reporter(callback, TOKEN, IDS, log, clock=rig.clock, times=QUICK) as reporter:
            await reporter.follow(stream, 0, "s")
            update = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}'
            stream.append([params_draft("s", update)] * 120)
            await reporter.finish("prompt_complete", PromptEnd(stop_reason="end_turn"), stream.head, 60)
            last = reporter.accepted
    assert (await head(rig))[0] == last == 4
