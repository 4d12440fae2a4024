"""Processes over HTTP: real ones, on a real server."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.server.processes.process_rig import LIMIT, ProcessRig, alive, gone, open_process_rig, text

from legation.errors import StorageFailed
from legation.wire.principal import Principal

pytestmark = pytest.mark.heavy


async def test_both_streams_are_kept_apart_with_dense_numbers_and_the_exit_code(bench: ProcessRig) -> None:
    began = await bench.sh("echo out; echo err >&2; exit 7", interactive=True)
    assert (began["status"], began["tty"], began["interactive"]) == ("running", False, True)
    assert (began["command"], began["owner"], began["cwd"]) == ("sh", "user", str(bench.folder))
    found = await bench.ended(began["id"])
    assert (found["status"], found["exitCode"], found["exitSignal"], found["pid"]) == (
        "exited",
        7,
        None,
        None,
    )
    assert found["exitedAtMs"] >= found["createdAtMs"]
    logs = (await bench.get(f"/{began['id']}/logs")).json()
    assert logs["stream"] == "combined"
    assert text(logs["entries"], "stdout") == b"out\n"
    assert text(logs["entries"], "stderr") == b"err\n"
    assert [each["sequence"] for each in logs["entries"]] == [1, 2]
    assert {each["encoding"] for each in logs["entries"]} == {"base64"}
    only = (await bench.get(f"/{began['id']}/logs?stream=stderr")).json()
    assert (only["stream"], text(only["entries"])) == ("stderr", b"err\n")


async def test_a_signal_is_told_by_its_name_and_not_as_a_code(bench: ProcessRig) -> None:
    found = await bench.ended((await bench.sh("kill -SEGV $$"))["id"])
    assert (found["exitCode"], found["exitSignal"]) == (None, "SIGSEGV")


async def test_a_flood_of_100_mb_is_bounded_and_every_byte_accounted_for(bench: ProcessRig) -> None:
    began = await bench.sh("head -c 100000000 /dev/zero; echo end")
    found = await bench.ended(began["id"])
    assert found["exitCode"] == 0
    log = bench.process(began["id"]).log
    kept = log.since(0)
    assert log.size <= 10 << 20
    assert log.dropped_bytes + sum(len(each.data) for each in kept) == 100_000_004
    assert kept[-1].data.endswith(b"end\n")
    logs = (await bench.get(f"/{began['id']}/logs?tail=2")).json()
    assert (logs["firstSequence"], logs["droppedBytes"]) == (log.first, log.dropped_bytes)
    assert [each["sequence"] for each in logs["entries"]] == [log.head - 1, log.head]


async def test_tail_and_since_choose_the_last_and_the_later_ones(bench: ProcessRig) -> None:
    process = bench.process((await bench.start("cat"))["id"])
    for number in range(5):
        process.log.add("stdout" if number % 2 else "stderr", str(number).encode(), 0)

    async def numbers(query: str) -> list[int]:
        found = await bench.get(f"/{process.id}/logs?{query}")
        return [each["sequence"] for each in found.json()["entries"]]

    assert await numbers("tail=2") == [4, 5]
    assert await numbers("tail=2&stream=stdout") == [2, 4]
    assert await numbers("tail=0") == []
    assert await numbers("tail=99") == [1, 2, 3, 4, 5]
    assert await numbers("since=3") == [4, 5]
    assert await numbers("since=3&tail=1") == [5]
    assert await numbers("since=99") == []
    assert await numbers("stream=pty") == []


async def test_stop_ends_daemons_too(bench: ProcessRig) -> None:
    # One in a session of its own, one that cleared its environment as well.
    script = "setsid sleep 1000 & echo $!; env -i setsid sleep 1000 & echo $!; wait"
    began = await bench.sh(script)
    said = await bench.shown(began["id"], lambda data: data.count(b"\n") == 2)
    pids = [int(line) for line in said.split()]
    assert all(alive(pid) for pid in pids)
    stopped = (await bench.post(f"/{began['id']}/stop?waitMs=30000")).json()
    assert (stopped["status"], stopped["exitSignal"]) == ("exited", "SIGTERM")
    assert not any(alive(pid) for pid in pids)


async def test_who_ignores_term_still_runs_after_stop_and_not_after_kill(bench: ProcessRig) -> None:
    began = await bench.sh('trap "echo no" TERM; echo ready; while :; do sleep 0.05; done')
    await bench.shown(began["id"], b"ready\n")
    stopped = (await bench.post(f"/{began['id']}/stop?waitMs=300")).json()
    assert (stopped["status"], stopped["pid"]) == ("running", began["pid"])
    await bench.shown(began["id"], b"no\n")
    assert (await bench.client.delete(f"/v1/processes/{began['id']}")).status_code == 409
    killed = (await bench.post(f"/{began['id']}/kill?waitMs=30000")).json()
    assert (killed["status"], killed["exitSignal"]) == ("exited", "SIGKILL")
    assert (await bench.client.delete(f"/v1/processes/{began['id']}")).status_code == 204
    assert (await bench.get(f"/{began['id']}")).status_code == 404
    assert (await bench.get("")).json() == {"processes": []}


async def test_input_reaches_it_in_every_encoding(bench: ProcessRig) -> None:
    began = await bench.start("cat")
    for body, size in (
        ({"data": "aGkK"}, 3),
        ({"data": "é\n", "encoding": "utf8"}, 3),
        ({"data": "you\n", "encoding": "text"}, 4),
    ):
        assert (await bench.post(f"/{began['id']}/input", body)).json() == {"bytesWritten": size}
    assert await bench.shown(began["id"], b"you\n") == "hi\né\nyou\n".encode()


async def test_input_that_cannot_be_taken_is_refused(bench: ProcessRig) -> None:
    reading, other = (
        (await bench.start("cat"))["id"],
        (await bench.sh("exec 0<&-; echo closed; sleep 1000"))["id"],
    )

    async def status(process: str, **body: str) -> int:
        return (await bench.post(f"/{process}/input", body)).status_code

    assert await status(reading, data="x", encoding="zz") == 400
    assert await status(reading, data="not base64") == 400
    assert await status(reading, data="x" * 65536, encoding="utf8") == 200
    assert await status(reading, data="x" * 65537, encoding="utf8") == 413
    await bench.shown(other, b"closed\n")
    codes = [await status(other, data="x", encoding="utf8") for _ in range(3)]
    assert codes[-1] == 409
    await bench.post(f"/{reading}/kill")
    await bench.ended(reading)
    assert await status(reading, data="x", encoding="utf8") == 409


async def test_input_that_nobody_reads_is_bounded(bench: ProcessRig) -> None:
    began = await bench.start("sleep", "1000")
    piece, answers = {"data": "x" * 65536, "encoding": "utf8"}, list[int]()
    while len(answers) < 100 and 409 not in answers:
        answers.append((await bench.post(f"/{began['id']}/input", piece)).status_code)
    assert answers[-1] == 409
    assert 16 <= len(answers) <= 40  # what waits with us, and what its pipe holds


async def test_the_environment_is_its_own_and_holds_nothing_of_the_servers(
    bench: ProcessRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATION_TOKEN", "s3cret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "s3cret")
    ran = (await bench.post("/run", {"command": "env", "env": {"MINE": "1", "HOME": "/mine"}})).json()
    found = dict(line.split("=", 1) for line in ran["stdout"].splitlines())
    assert "s3cret" not in ran["stdout"]
    assert (found["MINE"], found["HOME"]) == ("1", "/mine")
    assert Path(found["TMPDIR"]).is_dir()
    assert {each for each in found if each.startswith("LEGATION_")} == {
        "LEGATION_CHILD"
    }  # names it, opens nothing
    allowed = {
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "COLORTERM",
        "SHELL",
        "USER",
        "LOGNAME",
        "SSL_CERT_FILE",
    }
    allowed |= {"SSL_CERT_DIR", "HOME", "TMPDIR", "MINE", "LEGATION_CHILD"}
    assert {each for each in found if not each.startswith("LC_")} <= allowed
    assert "LC_CTYPE" not in found or "LC_CTYPE" in os.environ


async def test_it_has_three_descriptors_no_ignored_signals_and_a_session_of_its_own(
    bench: ProcessRig,
) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        signals = await bench.post("/run", {"command": "grep", "args": ["Sig[IB]", "/proc/self/status"]})
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert signals.json()["stdout"].split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    script = "ls /proc/$$/fd; echo $$; cut -d' ' -f6 /proc/$$/stat"
    ran = (await bench.post("/run", {"command": "sh", "args": ["-c", script]})).json()
    *descriptors, pid, session = ran["stdout"].split()
    assert descriptors == ["0", "1", "2"]
    assert pid == session


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"command": ""}, 400),
        ({"command": "no-such-program-here"}, 400),
        ({"command": "/"}, 400),
        ({"command": "sh\0"}, 400),
        ({"command": "echo", "args": ["a\0b"]}, 400),
        ({"command": "echo", "args": ["x" * 200_000]}, 400),
        ({"command": "echo", "args": ["x"] * 5000}, 400),
        ({"command": "echo", "args": "x"}, 400),
        ({"command": "echo", "env": {"A": "a\0b"}}, 400),
        ({"command": "echo", "env": {"A=B": "c"}}, 400),
        ({"command": "echo", "env": {"": "c"}}, 400),
        ({"command": "echo", "env": {"LEGATION_CHILD": "c"}}, 400),
        ({"command": "echo", "env": {"A": "x" * 200_000}}, 400),
        ({"command": "echo", "cwd": "a\0b"}, 400),
        ({"command": "echo", "cwd": "../"}, 400),
        ({"command": "echo", "cwd": "/"}, 403),
        ({"command": "echo", "cwd": "/proc/self"}, 403),
        ({"command": "echo", "cwd": "out"}, 403),
        ({"command": "echo", "cwd": "missing"}, 404),
        ({"command": "echo", "cwd": "file"}, 409),
        ({"command": "echo", "cwd": "x" * 9000}, 400),
        ({"command": "echo", "surprise": 1}, 400),
        ([], 400),
    ],
)
async def test_what_cannot_be_started_is_refused_and_nothing_starts(
    bench: ProcessRig, body: object, status: int
) -> None:
    (bench.folder / "file").touch()
    (bench.folder / "out").symlink_to("/tmp")
    for path in ("", "/run"):
        answer = await bench.post(path, body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"].startswith("cannot ")
    assert (await bench.get("")).json() == {"processes": []}
    assert list(bench.children.glob("*")) == []


async def test_a_folder_in_the_allowed_one_is_where_it_starts(bench: ProcessRig) -> None:
    (bench.folder / "deep" / "er").mkdir(parents=True)
    (bench.folder / "link").symlink_to("deep")
    for cwd in ("deep/er", str(bench.folder / "deep/er"), "link/er"):
        ran = (await bench.post("/run", {"command": "pwd", "cwd": cwd})).json()
        assert ran["stdout"] == f"{bench.folder}/deep/er\n"


async def test_another_workspaces_process_does_not_exist(bench: ProcessRig) -> None:
    began = await bench.start("cat", tty=True)
    path = f"/v1/processes/{began['id']}"
    for method, where, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/stop", None),
        ("POST", "/kill", None),
        ("GET", "/logs", None),
        ("GET", "/logs?follow=true", None),
        ("POST", "/input", {"data": "eA=="}),
        ("POST", "/terminal/resize", {"cols": 1, "rows": 1}),
        ("GET", "/terminal/ws", None),
    ):
        answer = await bench.client.request(method, path + where, json=body, headers=bench.eve)
        assert answer.status_code == 404, (method, where)
    listed = await bench.client.get("/v1/processes", headers=bench.eve)
    assert listed.json() == {"processes": []}
    assert (await bench.get("")).json()["processes"][0]["id"] == began["id"]
    for owner, count in (("user", 1), ("desktop", 0), ("system", 0)):
        assert len((await bench.get(f"?owner={owner}")).json()["processes"]) == count


async def test_the_limits_of_one_workspace_are_not_anothers(bench: ProcessRig) -> None:
    defaults = (await bench.get("/config")).json()
    assert defaults == {
        "maxConcurrentProcesses": 64,
        "defaultRunTimeoutMs": 30_000,
        "maxRunTimeoutMs": 300_000,
        "maxOutputBytes": 1 << 20,
        "maxLogBytesPerProcess": 10 << 20,
        "maxInputBytesPerRequest": 1 << 16,
    }
    less = {**defaults, "maxConcurrentProcesses": 1, "maxInputBytesPerRequest": 3, "maxOutputBytes": 2}
    assert (await bench.post("/config", less)).json() == less
    began = await bench.start("cat")
    for path in ("", "/run"):
        assert (await bench.post(path, {"command": "true"})).status_code == 409
    assert (
        await bench.post(f"/{began['id']}/input", {"data": "aaaa", "encoding": "utf8"})
    ).status_code == 413
    other = await bench.client.post("/v1/processes", json={"command": "true"}, headers=bench.eve)
    assert other.status_code == 200
    assert (await bench.post(f"/{began['id']}/kill?waitMs=30000")).json()["status"] == "exited"
    ran = (await bench.post("/run", {"command": "echo", "args": ["long"]})).json()
    assert (ran["stdout"], ran["stdoutTruncated"]) == ("lo", True)
    for name, value, status in (
        ("maxConcurrentProcesses", 65, 403),  # above what is set takes the owner
        ("maxRunTimeoutMs", 0, 400),
        ("maxLogBytesPerProcess", 1 << 30, 400),  # nobody gets that much
    ):
        assert (await bench.post("/config", {**defaults, name: value})).status_code == status
    assert (await bench.get("/config")).json() == less


async def test_the_65th_is_refused_and_the_end_of_the_server_leaves_none(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_process_rig(tmp_path, request) as bench:
        began = [await bench.start("sleep", "1000") for _ in range(64)]
        answer = await bench.post("", {"command": "true"})
        assert (answer.status_code, answer.json()["data"]) == (409, {"limit": 64})
        assert len(list(bench.children.glob("*.child"))) == 64
    for each in began:
        assert not alive(each["pid"])


async def test_every_start_is_recorded_first_and_what_cannot_be_recorded_is_not_started(
    bench: ProcessRig,
) -> None:
    await bench.start("/bin/sleep", "1000", tty=True)
    await bench.post("/run", {"command": "echo", "args": ["argument"]})
    assert bench.recorded.starts == [("local", "sleep", True), ("local", "echo", False)]
    bench.recorded.fails = StorageFailed("cannot write; mend it")
    marker = bench.folder / "marker"
    for path in ("", "/run"):
        assert (await bench.post(path, {"command": "touch", "args": [str(marker)]})).status_code == 500
    assert not marker.exists()
    assert len((await bench.get("")).json()["processes"]) == 1


async def test_they_are_off_unless_turned_on(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_process_rig(tmp_path, request, enabled=False, websockets=False) as bench:
        for method, path, body in (
            ("GET", "", None),
            ("POST", "", {"command": "true"}),
            ("POST", "/run", {"command": "true"}),
            ("GET", "/config", None),
            ("GET", "/x/terminal/ws", None),
        ):
            answer = await bench.client.request(method, f"/v1/processes{path}", json=body)
            assert answer.status_code == 403
            assert "LEGATION_PROCESSES=true" in answer.json()["detail"]
        assert bench.recorded.starts == []


async def test_only_operators_and_never_agents(bench: ProcessRig) -> None:
    for person, status in (("viewer", 403), ("approver", 403), ("owner", 200)):
        headers = await bench.rig.bearer(bench.rig.people[person])
        assert (await bench.client.get("/v1/processes", headers=headers)).status_code == status
    assert (await bench.client.get("/v1/processes", headers={"authorization": "Bearer x"})).status_code == 401
    agent = Principal(
        kind="token", id="t", workspace="local", scopes=frozenset({"operate"}), level=0, agent="claude"
    )
    with pytest.raises(Exception, match="outside its jail"):
        bench.processes.list(agent, None)


async def test_the_oldest_of_many_ended_ones_is_forgotten(bench: ProcessRig) -> None:
    first = await bench.start("true")
    await bench.ended(first["id"])
    shelf_size = 64
    for _ in range(shelf_size + 1):
        await bench.ended((await bench.start("true"))["id"])
    await bench.start("true")
    assert (await bench.get(f"/{first['id']}")).status_code == 404
    listed: list[dict[str, Any]] = (await bench.get("")).json()["processes"]
    assert [each["id"] for each in listed] == sorted(each["id"] for each in listed)
    assert len([each for each in listed if each["status"] == "exited"]) <= shelf_size + 1


async def test_a_caller_who_leaves_takes_its_run_along(bench: ProcessRig) -> None:
    pid = bench.folder / "pid"
    _, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    body = b'{"command":"sh","args":["-c","echo $$ > pid.new; mv pid.new pid; sleep 1000"]}'
    head = f"POST /v1/processes/run HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bench.ada['authorization']}\r\n"
    writer.write(
        f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    async with asyncio.timeout(LIMIT):
        while not pid.exists():
            await asyncio.sleep(0.02)
    number = int(pid.read_text())
    assert alive(number)
    writer.close()
    await gone(number)
