"""`start`: a server of one's own, and nothing left of it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest
from tests.client.faulty_server import in_turn, ok, serving

from legation.client import AsyncLegation, Legation, Spawn
from legation.client.child import choose_port, command, environment, make_token
from legation.errors import ConfigInvalid, Conflict, StorageFailed, TimedOut, Unavailable
from legation.secret import Secret
from legation.store.files import FolderLock
from legation.wire.api.server import OWNER_LOCK

pytestmark = pytest.mark.heavy  # a process each

FAKE = [sys.executable, str(Path(__file__).with_name("fake_server.py"))]


def fake(fault: str = "", **options: Any) -> Spawn:
    return Spawn(binary=FAKE, env={"FAKE": fault}, **{"log": "silent", **options})


def seen_by(legation: Legation) -> tuple[int, dict[str, Any]]:
    info = legation.info()
    return info.pid, json.loads(info.url)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private data folders go, so that a test can see that they are gone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_server_is_started_used_and_gone(own_tmp: Path) -> None:
    with Legation.start(fake()) as legation:
        pid, seen = seen_by(legation)
        assert runs(pid)
        data_dir = Path(seen["env"]["LEGATION_DATA_DIR"])
        assert data_dir.parent == own_tmp
        assert data_dir.stat().st_mode & 0o777 == 0o700
    assert not runs(pid)
    assert list(own_tmp.iterdir()) == []


async def test_the_async_client_starts_one_too(own_tmp: Path) -> None:
    async with AsyncLegation.start(fake()) as legation:
        pid = (await legation.info()).pid
        assert runs(pid)
    assert not runs(pid)
    assert list(own_tmp.iterdir()) == []


def test_the_token_is_not_on_the_command_line_and_foreign_variables_stay_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-key")
    monkeypatch.setenv("LEGATION_BIN", "elsewhere")
    monkeypatch.setenv("LEGATION_LOG_LEVEL", "info")
    with Legation.start(fake(token="canary-token", host="127.0.0.1")) as legation:
        _, seen = seen_by(legation)
        assert "canary-token" not in repr(legation)
    assert seen["argv"][:4] == ["server", "--host", "127.0.0.1", "--port"]
    assert seen["argv"][5:] == ["--exit-with-parent"]
    assert "canary-token" not in " ".join(seen["argv"])
    assert seen["env"]["LEGATION_TOKEN"] == "canary-token"
    assert seen["env"]["LEGATION_LOG_LEVEL"] == "info"
    assert not {"ANTHROPIC_API_KEY", "LEGATION_BIN"} & seen["env"].keys()


def test_one_that_ends_early_is_reported_at_once_with_its_last_words(own_tmp: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="ended with code 3") as caught:
        Legation.start(fake("exits", token="canary-token"))
    assert time.monotonic() - began < 10
    assert "no luck" in str(caught.value)
    assert "canary-token" not in str(caught.value)
    assert caught.value.data == {"exitCode": 3}
    assert list(own_tmp.iterdir()) == []


def test_one_that_does_not_get_healthy_is_stopped() -> None:
    with pytest.raises(TimedOut, match="not healthy within 1 s") as caught:
        Legation.start(fake("sick", wait=1.0))
    assert "fake server starts" in str(caught.value)


def test_one_that_ignores_term_is_killed_with_its_group(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with Legation.start(fake("stubborn", data_dir=data_dir)) as legation:
        pid = legation.info().pid
        grandchild = int((data_dir / "grandchild").read_text())
        assert runs(grandchild)
    assert not runs(pid)
    wait_until(lambda: not runs(grandchild))
    assert data_dir.exists()  # it is not ours to remove


def test_one_that_talks_a_lot_is_not_held_up_and_its_log_goes_where_it_should(tmp_path: Path) -> None:
    with Legation.start(fake("chatty", log=tmp_path / "server.log")) as legation:
        legation.health()
    assert (tmp_path / "server.log").stat().st_size > 300_000
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_an_error_and_starts_nothing(tmp_path: Path, own_tmp: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot write the server's log"):
        Legation.start(fake(log=tmp_path / "absent" / "log"))
    assert list(own_tmp.iterdir()) == []


def test_a_command_that_is_not_there_is_named(own_tmp: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cannot start /nowhere/legation") as caught:
        Legation.start(Spawn(binary="/nowhere/legation", token="canary-token"))
    shown = "".join(TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "_run" in shown
    assert "canary-token" not in shown.replace('token="canary-token"', "")  # but for this very line
    assert list(own_tmp.iterdir()) == []


def test_a_stranger_on_the_port_is_not_taken_for_our_server() -> None:
    with serving(in_turn(ok({"status": "ok"}))) as stranger:
        with pytest.raises(Conflict, match=f"127.0.0.1:{stranger.port}: Address already in use"):
            Legation.start(fake(port=stranger.port))
        assert stranger.asked == []


def test_the_port_that_is_asked_for_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Legation.start(fake(port=port)) as legation:
        assert legation.url == f"http://127.0.0.1:{port}"


def run_parent(tmp_path: Path, end: str) -> tuple[subprocess.Popen[str], int]:
    """A program that starts a server and ends in its own way; the server's pid."""
    program = (
        "import os, sys, time\n"
        "from legation.client import Legation, Spawn\n"
        f"one = Legation.start(Spawn(binary={FAKE!r}, log='silent'))\n"
        f"print(one.info().pid, flush=True)\n{end}\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise SystemExit(1)"])
def test_a_program_that_forgets_to_close_leaves_nothing(tmp_path: Path, end: str) -> None:
    parent, pid = run_parent(tmp_path, end)
    with parent:
        parent.wait(15)
    assert not runs(pid)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("legation-")]


def test_a_fork_that_exits_leaves_the_server_to_its_owner(tmp_path: Path) -> None:
    fork = (
        "child = os.fork()\nif child == 0:\n    sys.exit(0)\nos.waitpid(child, 0)\nprint(one.health().status)"
    )
    parent, pid = run_parent(tmp_path, fork)
    with parent:
        said, _ = parent.communicate(timeout=15)
    assert said.splitlines()[-1] == "ok"
    assert not runs(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_killed_takes_its_server_along(tmp_path: Path, number: signal.Signals) -> None:
    parent, pid = run_parent(tmp_path, "time.sleep(60)")
    with parent:
        assert runs(pid)
        parent.send_signal(number)
        parent.wait(15)
    wait_until(lambda: not runs(pid))


async def test_a_start_that_is_cancelled_leaves_nothing(own_tmp: Path) -> None:
    async def use() -> None:
        async with AsyncLegation.start(fake("sick", wait=30.0)):
            raise AssertionError

    starting = asyncio.create_task(use())
    await asyncio.to_thread(wait_until, lambda: any(own_tmp.iterdir()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(wait_until, lambda: not any(own_tmp.iterdir()))
    assert "legation-server-log" not in [thread.name for thread in threading.enumerate()]


def write_server_file(folder: Path, url: str, pid: int) -> None:
    found = {"url": url, "token": "canary-token", "pid": pid, "startedAt": 1, "version": "0"}
    (folder / "server.json").write_text(json.dumps(found))


def test_the_running_server_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATION_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LEGATION_BIN", "not a setting")
    with serving(in_turn(ok({"status": "ok"}))) as server:
        write_server_file(tmp_path, server.url, os.getpid())
        lock = FolderLock(tmp_path / OWNER_LOCK)
        lock.acquire()
        for legation in (Legation.find(), Legation.start(spawn=False), Legation.find(tmp_path)):
            with legation:
                legation.health()
        assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer canary-token"}
        lock.release()


def test_a_pid_that_somebody_else_has_by_now_is_not_taken_for_the_server(tmp_path: Path) -> None:
    """Else the token would be sent to whoever has the port."""
    write_server_file(tmp_path, "http://127.0.0.1:1", os.getpid())
    (tmp_path / OWNER_LOCK).touch()
    with pytest.raises(Unavailable, match="is gone"):
        Legation.find(tmp_path)


def test_no_server_is_a_hint_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="start one with `legation up`"):
        Legation.find(tmp_path)


def test_a_file_that_a_dead_server_left_is_recognised(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_server_file(tmp_path, "http://127.0.0.1:1", gone.pid)
    with pytest.raises(Unavailable, match=f"its process {gone.pid} is gone"):
        Legation.find(tmp_path)


def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": 7, "token": "canary-token"}')
    with pytest.raises(Unavailable, match="damaged") as caught:
        Legation.find(tmp_path)
    assert "canary" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_tokens_are_long_and_new() -> None:
    first, second = make_token(None), make_token(None)
    assert first != second
    assert len(first.reveal()) == 32  # 24 bytes in base64
    assert make_token(first) is first


def test_the_options_do_not_show_what_may_be_secret() -> None:
    assert "canary" not in repr(Spawn(token="canary-token", env={"KEY": "canary-key"}))


def test_without_a_binary_it_is_this_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATION_BIN", raising=False)
    assert command(Spawn(), 7)[:4] == [sys.executable, "-P", "-m", "legation"]
    monkeypatch.setenv("LEGATION_BIN", "/opt/with space/legation")
    assert command(Spawn(), 7)[:2] == ["/opt/with space/legation", "server"]
    assert command(Spawn(binary="x"), 7)[0] == "x"


def test_a_given_variable_cannot_replace_the_token() -> None:
    made = environment(Spawn(env={"LEGATION_TOKEN": "x", "A": "b"}), Secret("t"), Path("/d"), {})
    assert made == {"PATH": os.defpath, "A": "b", "LEGATION_TOKEN": "t", "LEGATION_DATA_DIR": "/d"}


def test_a_free_port_is_found_and_a_foreign_host_refused() -> None:
    assert choose_port(Spawn()) > 0
    with pytest.raises(Conflict, match=r"cannot start a server on 203\.0\.113\.1"):
        choose_port(Spawn(host="203.0.113.1"))
