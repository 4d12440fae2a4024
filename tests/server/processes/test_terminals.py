"""Terminals, over HTTP and over WebSockets, with a real client of the library."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from tests.server.processes.process_rig import LIMIT, ProcessRig, alive
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from legation.clock import SystemClock
from legation.server.auth import COOKIE_NAME
from legation.server.http import server as http_server
from legation.server.http.server import WS_MESSAGE_BYTES
from legation.server.processes.websocket import TerminalAttachment
from legation.store.identity import tokens

pytestmark = pytest.mark.heavy
CUT_OFF_LIMIT = 30.0  # seconds: less than the time that a client has to take a frame
JOB = re.compile(rb"pid=(\d+)\r\n")  # not where it is typed


class Screen:
    """What a client has seen."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.data = b""
        self.frames: list[dict[str, Any]] = []

    async def until(self, wanted: bytes) -> bytes:
        async with asyncio.timeout(LIMIT):
            while wanted not in self.data:
                self._take(await self.socket.recv())
        return self.data

    async def frame(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT):
            while not (found := [each for each in self.frames if each["type"] == kind]):
                self._take(await self.socket.recv())
        self.frames.remove(found[0])
        return found[0]

    async def closed(self) -> int | None:
        """Its code, when it has all been taken."""
        async with asyncio.timeout(LIMIT):
            try:
                while True:
                    self._take(await self.socket.recv())
            except ConnectionClosed:
                return self.socket.close_code

    async def send(self, kind: str, **members: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **members}))

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self.data += message
        else:
            self.frames.append(json.loads(message))


@asynccontextmanager
async def attached(bench: ProcessRig, process: str, query: str = "", **options: Any) -> AsyncIterator[Screen]:
    options.setdefault("additional_headers", bench.ada)
    async with connect(
        bench.ws(process, query), compression=None, proxy=None, max_size=None, **options
    ) as socket:
        yield Screen(socket)


async def refused(bench: ProcessRig, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    options.setdefault("additional_headers", bench.ada)
    with pytest.raises(InvalidStatus) as found:
        async with connect(url, compression=None, proxy=None, **options):
            pass
    response = found.value.response
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["request-id"]
    return response.status_code, json.loads(response.body or b"{}")


async def test_a_terminal_has_a_size_and_can_be_resized(bench: ProcessRig) -> None:
    began = await bench.start("sh", tty=True, env={"PS1": "$ "})
    await bench.shown(began["id"], b"$ ")

    async def type_in(line: str) -> None:
        await bench.post(f"/{began['id']}/input", {"data": f"{line}\n", "encoding": "utf8"})

    await type_in("stty size; tty; echo $TERM")
    said = await bench.shown(began["id"], b"xterm-256color\r\n")
    assert b"24 80\r\n/dev/pts/" in said
    answer = await bench.post(f"/{began['id']}/terminal/resize", {"cols": 123, "rows": 45})
    assert answer.json() == {"cols": 123, "rows": 45}
    await type_in("stty size")
    await bench.shown(began["id"], b"45 123\r\n")
    for size in ({"cols": 0, "rows": 1}, {"cols": 1}, {"cols": 70000, "rows": 1}):
        assert (await bench.post(f"/{began['id']}/terminal/resize", size)).status_code == 400
    logs = (await bench.get(f"/{began['id']}/logs")).json()
    assert (logs["stream"], {each["stream"] for each in logs["entries"]}) == ("pty", {"pty"})
    await type_in("exit 5")
    assert (await bench.ended(began["id"]))["exitCode"] == 5
    assert (await bench.post(f"/{began['id']}/terminal/resize", {"cols": 1, "rows": 1})).status_code == 409


async def test_stop_ends_an_interactive_shell_and_its_jobs(bench: ProcessRig) -> None:
    began = await bench.start("sh", "-i", tty=True)
    await bench.post(f"/{began['id']}/input", {"data": "sleep 1000 & echo pid=$!\n", "encoding": "utf8"})
    said = await bench.shown(began["id"], lambda data: JOB.search(data) is not None)
    found = JOB.search(said)
    assert found is not None
    job = int(found[1])
    assert alive(job)
    assert (await bench.post(f"/{began['id']}/stop?waitMs=30000")).json()["status"] == "exited"
    assert not alive(job)


async def test_ctrl_c_interrupts_what_runs_in_it(bench: ProcessRig) -> None:
    began = await bench.start(
        "sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 1; done", tty=True
    )
    async with attached(bench, began["id"]) as screen:
        assert await screen.frame("ready") == {"type": "ready", "processId": began["id"]}
        await screen.until(b"ready\r\n")
        await screen.send("input", data="\x03")
        await screen.until(b"^Ccaught\r\n")
        assert await screen.frame("exit") == {"type": "exit", "exitCode": 9}
        assert await screen.closed() == 1000


async def test_a_client_types_resizes_and_leaves_and_another_comes_later(bench: ProcessRig) -> None:
    began = await bench.start("sh", tty=True, env={"PS1": "$ "})
    token = bench.ada["authorization"].removeprefix("Bearer ")
    async with attached(bench, began["id"], f"?access_token={token}", additional_headers={}) as screen:
        await screen.until(b"$ ")
        await screen.send("resize", cols=100, rows=30)
        await screen.send("input", data="c3R0eSBzaXplCg==", encoding="base64")
        await screen.until(
            b"30 100\r\n$ "
        )  # the prompt too: else it comes between what is typed and what is said
        await screen.send("input", data="echo é\n")
        await screen.until("echo é\r\né\r\n".encode())
        await screen.send("close")
        assert await screen.closed() == 1000
    assert bench.process(began["id"]).running
    async with attached(bench, began["id"]) as later, attached(bench, began["id"]) as third:
        await later.until(b"30 100\r\n")  # what was there before
        await later.send("input", data="exit\n")
        for each in (later, third):
            assert await each.frame("exit") == {"type": "exit", "exitCode": 0}


async def test_what_a_client_should_not_send_is_answered_and_does_no_harm(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)
    async with attached(bench, began["id"]) as screen:
        for bad in (
            "nonsense s3cret",
            "[]",
            '{"type":"launch"}',
            '{"type":"input"}',
            '{"type":"input","data":"%%","encoding":"base64"}',
            '{"type":"resize","cols":0,"rows":1}',
            json.dumps({"type": "input", "data": "x" * 65537}),
            b"binary",
        ):
            await screen.socket.send(bad)
            said = await screen.frame("error")
            assert said["message"].startswith("cannot ")
            assert "s3cret" not in said["message"]
        await screen.send("input", data="still here\n")
        await screen.until(b"still here\r\nstill here\r\n")
        await screen.socket.send("x" * (WS_MESSAGE_BYTES + 1))
        assert await screen.closed() == 1009
    assert bench.process(began["id"]).running


async def test_pages_of_other_origins_are_refused_before_the_upgrade(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)
    url, token = bench.ws(began["id"]), bench.ada["authorization"].removeprefix("Bearer ")
    session = bench.rig.cookies.write(await bench.rig.session(bench.rig.people["operator"]))
    cookie = {"cookie": f"{COOKIE_NAME}={session}"}
    evil = "https://evil.test"
    for options in (
        {"additional_headers": cookie, "origin": evil},
        {"additional_headers": cookie, "origin": "null"},
        {"additional_headers": cookie, "origin": f"http://127.0.0.1:{bench.port + 1}"},
        {"additional_headers": cookie},
        {"additional_headers": {**cookie, "sec-fetch-site": "cross-site"}},
        {"additional_headers": bench.ada, "origin": evil},
    ):
        assert (await refused(bench, url, **options))[0] == 403, options
    assert (await refused(bench, f"{url}?access_token={token}", additional_headers={}, origin=evil))[0] == 403
    for own in (bench.url, bench.rig.services.public_url, "https://listed.test"):
        async with attached(bench, began["id"], additional_headers=cookie, origin=own) as screen:
            await screen.frame("ready")


async def test_who_may_not_is_refused_with_the_same_problems_as_anywhere(bench: ProcessRig) -> None:
    terminal, pipes = await bench.start("cat", tty=True), await bench.start("cat")
    viewer = await bench.rig.bearer(bench.rig.people["viewer"])
    url = bench.ws(terminal["id"])
    assert (await refused(bench, url, additional_headers={}))[0] == 401
    assert (await refused(bench, f"{url}?access_token=wrong", additional_headers={}))[0] == 401
    assert (await refused(bench, f"{url}?access_token=a&access_token=b", additional_headers={}))[0] == 401
    assert (await refused(bench, url, additional_headers=viewer))[0] == 403
    assert (await refused(bench, url, additional_headers=bench.eve))[0] == 404
    assert (await refused(bench, bench.ws("proc_x")))[0] == 404
    assert (await refused(bench, bench.ws(pipes["id"])))[0] == 409
    async with attached(
        bench, terminal["id"], "?surprise=1"
    ) as screen:  # as sandbox-agent, which passes over it
        await screen.frame("ready")
    status, said = await refused(
        bench, f"ws://localhost:{bench.port}/v1/processes/{terminal['id']}/terminal/ws"
    )
    assert (status, said["data"]["path"]) == (400, "header.Host")
    # Not a WebSocket's address: also where its answer would never end.
    for path in ("/v1/processes", f"/v1/processes/{pipes['id']}/logs?follow=true", "/nothing"):
        assert (await refused(bench, f"ws://127.0.0.1:{bench.port}{path}"))[0] == 404


async def test_the_token_of_the_query_opens_nothing_else(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)
    token = bench.ada["authorization"].removeprefix("Bearer ")
    async with httpx2.AsyncClient(base_url=bench.url) as stranger:
        for path in ("", f"/{began['id']}", f"/{began['id']}/logs", f"/{began['id']}/terminal/ws"):
            assert (await stranger.get(f"/v1/processes{path}?access_token={token}")).status_code == 401
    url = f"ws://127.0.0.1:{bench.port}/v1/processes/{began['id']}/logs?access_token={token}"
    assert (await refused(bench, url, additional_headers={}))[0] == 404
    plain = await bench.get(f"/{began['id']}/terminal/ws")
    assert (plain.status_code, "WebSocket" in plain.json()["detail"]) == (400, True)


async def test_no_log_holds_a_token_or_what_was_typed(
    bench: ProcessRig, caplog: pytest.LogCaptureFixture
) -> None:
    began = await bench.start("cat", tty=True)
    token = bench.ada["authorization"].removeprefix("Bearer ")
    with caplog.at_level(logging.DEBUG):
        for logger in ("uvicorn", "uvicorn.error", "websockets", "legation"):
            caplog.set_level(logging.DEBUG, logger)
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        path = f"/v1/processes/{began['id']}/terminal/ws?access_token={token}"
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(LIMIT):
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"ready")
        writer.close()
        assert (await refused(bench, bench.ws("proc_x", f"?access_token={token}"), additional_headers={}))[
            0
        ] == 404
    ours = [each for each in caplog.records if not each.name.startswith("websockets.client")]
    assert ours
    assert token not in "\n".join(each.getMessage() for each in ours)


async def test_a_client_that_does_not_read_holds_up_nothing_and_grows_nothing(bench: ProcessRig) -> None:
    began = await bench.start(
        "sh", "-c", "stty -onlcr; read x; yes 123456789 | head -c 30000000; echo end", tty=True
    )
    process = bench.process(began["id"])
    async with attached(bench, began["id"], max_queue=1) as screen:
        await screen.frame("ready")
        screen.socket.transport.pause_reading()
        await screen.send("input", data="\n")
        assert await process.wait(LIMIT)  # nobody waited for the client
        assert process.log.size <= 10 << 20
        (connection,) = websockets_of(bench)
        assert connection.transport.get_write_buffer_size() <= 512 * 1024
        screen.socket.transport.resume_reading()
        assert "gone" in (await screen.frame("error"))["message"]
        assert await screen.frame("exit") == {"type": "exit", "exitCode": 0}
        assert await screen.closed() == 1000
    kept = b"".join(each.data for each in process.log.since(0))
    assert screen.data.endswith(kept[-5_000_000:])


async def test_a_dead_client_is_cut_off(bench: ProcessRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers no ping, and takes nothing of what it was sent."""
    monkeypatch.setattr(bench.serving.config, "ws_ping_timeout", 1.0)
    began = await bench.start("sh", "-c", "read x; exec yes", tty=True)
    async with attached(bench, began["id"], max_queue=1, close_timeout=0) as screen:
        await screen.frame("ready")
        (connection,) = websockets_of(bench)
        screen.socket.transport.pause_reading()
        await bench.post(f"/{began['id']}/input", {"data": "\n", "encoding": "utf8"})
        async with asyncio.timeout(CUT_OFF_LIMIT):
            while connection.writable.is_set():
                await asyncio.sleep(0.01)
            connection.send_keepalive_ping()  # as its timer would
            while websockets_of(bench) or terminal_tasks():
                await asyncio.sleep(0.02)
        screen.socket.transport.abort()
    assert bench.process(began["id"]).running


async def test_a_connection_that_the_server_has_given_up_meanwhile_is_no_defect(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(_message: object) -> None:  # as uvicorn does between its last ping and the end
        raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")

    async def holds() -> bool:
        return True

    async with asyncio.timeout(LIMIT):
        await TerminalAttachment(bench.process(began["id"]), 100, holds, SystemClock()).serve(receive, send)
    assert terminal_tasks() == []


def websockets_of(bench: ProcessRig) -> list[Any]:
    return [each for each in bench.serving.server_state.connections if hasattr(each, "ping_timer")]


def terminal_tasks() -> list[str]:
    return [name for each in asyncio.all_tasks() if "legation-terminal" in (name := each.get_name())]


async def test_a_revoked_token_ends_it(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)
    token, secret = await bench.rig.token(bench.rig.people["operator"])
    headers = {"authorization": f"Bearer {secret}"}
    async with attached(bench, began["id"], additional_headers=headers) as screen:
        await screen.frame("ready")
        await bench.rig.services.database.transact(
            tokens.revoke, bench.rig.server, token, now_ms=bench.rig.clock.now_ms()
        )
        async with asyncio.timeout(LIMIT):
            while screen.socket.close_code is None:
                bench.rig.clock.advance(16)
                await asyncio.sleep(0.02)
        assert screen.socket.close_code == 1008


async def test_the_end_of_the_server_ends_it_and_its_process(bench: ProcessRig) -> None:
    began = await bench.start("yes", tty=True)
    async with attached(bench, began["id"], max_queue=1) as screen:
        await screen.frame("ready")
        bench.serving.stop()
        assert await screen.closed() in (1012, 1006)
    async with asyncio.timeout(LIMIT):
        await bench.processes.__aexit__(None, None, None)
    assert not alive(began["pid"])


async def test_the_time_for_a_request_does_not_run_out_on_an_open_terminal(
    bench: ProcessRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 1.0)
    began = await bench.start("sh", "-c", "read x; sleep 3; echo late", tty=True)
    async with attached(bench, began["id"]) as screen:
        await screen.send("input", data="\n")
        await screen.until(b"late\r\n")
