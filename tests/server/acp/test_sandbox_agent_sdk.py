"""The npm `sandbox-agent` 0.4.2 SDK, unmodified, against our server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests import real_agents
from tests.cli.server_process import Running
from tests.server.acp.acp_server import serving

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

HERE = Path(__file__).parent
LONG = 330  # seconds of a prompt: more than the 300 after which Node's fetch gives up on a silent server


def sdk() -> tuple[Path, Path]:
    try:
        return real_agents.install("sandbox-agent-sdk") / "node_modules" / "sandbox-agent", real_agents.node()
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))


def run(server: Running | None, what: str, work: Path, *more: str, limit: float = 90.0, **env: str) -> Any:
    folder, node = sdk()
    work.mkdir(exist_ok=True)
    given = {"PATH": os.environ["PATH"], "HOME": str(work), **env}
    if server is not None:
        found = server.server_file()
        given |= {"SERVER_URL": found.url, "SERVER_TOKEN": found.token}
    done = subprocess.run(
        [str(node), str(HERE / "sandbox_agent_sdk.mjs"), str(folder), what, str(work), *more],
        env=given,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ACP write error" not in done.stderr
    return json.loads(done.stdout)


def test_sessions_prompts_permissions_modes_events_and_dispose(server: Running, tmp_path: Path) -> None:
    work = tmp_path / "work"
    found = run(server, "everything", work)
    assert found["stopReason"] == "end_turn"
    assert found["kinds"] == ["edit", "edit"]
    assert (work / "allowed.txt").read_text() == "yes"
    assert not (work / "denied.txt").exists()
    assert found["stored"] > 5
    assert found["servers"] == 1  # both sessions share one
    assert found["disposeMs"] < 1000  # theirs takes two seconds


def test_a_crash_is_told_at_once_and_the_session_goes_on(server: Running, tmp_path: Path) -> None:
    found = run(server, "crash", tmp_path / "work")
    assert found["code"] == -32603
    assert (found["data"]["reason"], found["data"]["exitCode"]) == ("crashed", 7)
    assert found["stopReason"] == "end_turn"
    assert found["crashMs"] < 60_000  # theirs takes two minutes


def test_modes_models_raw_messages_and_the_sessions_that_it_keeps(server: Running, tmp_path: Path) -> None:
    work = tmp_path / "work"
    found = run(server, "choosing", work)
    assert found["begun"] == ["plan", "rehearsal-terse"]
    assert found["set"] == "rehearsal-terse"
    assert found["same"] is True
    assert (work / "raw.txt").read_text() == "yes"
    assert found["thoughtLevel"] == "UnsupportedSessionCategoryError"  # the agent has none
    assert (found["bypass"], found["unknown"]) == (-32600, -32601)
    assert (found["stalled"], found["destroyed"]) == ("cancelled", True)
    assert found["listed"] == 2
    assert (found["sessions"], found["missing"]) == (True, None)


def test_a_session_that_it_kept_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as server:
        before = run(server, "before", tmp_path / "work")
    with serving(tmp_path / "home") as server:
        after = run(server, "after", tmp_path / "work")
    assert after["stopReason"] == "end_turn"
    assert (
        after["agentSessionId"] != before["agentSessionId"]
    )  # its way: another session, with the story in the prompt


def test_agents_and_what_is_left_out(server: Running, tmp_path: Path) -> None:
    found = run(server, "agents", tmp_path / "work")
    assert found["health"] == "ok"
    assert {"claude", "codex", "opencode", "amp", "pi", "cursor", "mock"} <= set(found["ids"])
    assert found["flags"] is True
    assert found["categories"] == ["mode", "model", "thought_level"]
    assert found["installed"]["already_installed"] is True
    assert found["installed"]["artifacts"][0]["source"] == "builtin"
    assert found["unknown"] == [404, 404]
    assert found["desktop"] == 501


def test_mcp_servers_and_skills_of_a_folder_are_kept(server: Running, tmp_path: Path) -> None:
    found = run(server, "config", tmp_path / "work")
    assert (found["before"], found["after"]) == (404, [404, 404])
    assert found["mcp"]["command"] == "x"
    assert (found["mcp"]["args"], found["mcp"]["env"]) == (["-y"], {"A": "b"})
    assert found["skills"]["sources"][0]["source"] == "a/b"
    assert found["stored"] == ["a name", "other"]
    assert found["other"] == "http://127.0.0.1:9"


def test_the_mock_speaks_chooses_and_asks_as_theirs(server: Running, tmp_path: Path) -> None:
    found = run(server, "mock", tmp_path / "work")
    assert (found["stopReason"], found["agent"]) == ("end_turn", "mock")
    assert found["chosen"] == [["mock-fast", "plan", "plan", "high"], ["mock", "normal", "normal", "medium"]]
    assert found["asked"] == [["Write mock.txt", "edit"]] * 2
    assert found["wrong"] == "UnsupportedSessionValueError"


def test_files(server: Running, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with tarfile.open(work / "batch.tar", "w") as batch:
        batch.add(__file__, "in/it.py")
    found = run(server, "files", work)
    assert found["written"] == {"path": str(work / "a/one.txt"), "bytesWritten": 3}
    assert found["moved"] == {"from": str(work / "a/one.txt"), "to": str(work / "b/two.txt")}
    assert found["uploaded"] == {"paths": [str(work / "c/in/it.py")], "truncated": False}
    assert found["read"] == "one"
    assert (found["stat"]["entryType"], found["stat"]["size"]) == ("file", 3)
    assert found["entries"] == [["two.txt", "file", 3]]
    assert (found["full"], found["missing"]) == (409, 404)
    assert found["deleted"] == {"path": str(work / "b")}


def test_processes_their_logs_and_a_terminal(tmp_path: Path) -> None:
    with serving(tmp_path / "home", LEGATION_PROCESSES="true") as server:
        found = run(server, "processes", tmp_path / "work")
    assert found["output"] == [1024 * 1024, 3]
    assert (found["run"]["exitCode"], found["run"]["stdout"], found["run"]["stdoutTruncated"]) == (
        4,
        "hel",
        True,
    )
    assert (found["kept"], found["running"], found["listed"], found["stopped"]) == (1, 409, True, "exited")
    assert found["frames"] == ["ready", 5]
    assert found["missing"] == 404


def own_binary(tmp_path: Path) -> str:
    binary = tmp_path / "legation"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m legation "$@"\n')
    binary.chmod(0o755)
    return str(binary)


def test_it_starts_our_server_by_the_variable_it_knows(tmp_path: Path) -> None:
    binary = own_binary(tmp_path)
    assert run(None, "start", tmp_path / "work", SANDBOX_AGENT_BIN=binary)["stopReason"] == "end_turn"


def test_two_programs_at_once_and_one_after_a_program_that_was_killed(tmp_path: Path) -> None:
    binary, work = own_binary(tmp_path), tmp_path / "work"
    folder, node = sdk()
    work.mkdir()
    held = subprocess.Popen(
        [str(node), str(HERE / "sandbox_agent_sdk.mjs"), str(folder), "hold", str(work)],
        env={"PATH": os.environ["PATH"], "HOME": str(work), "SANDBOX_AGENT_BIN": binary},
        cwd=work,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline().startswith("local/127.0.0.1:")
        place = work / ".local/share/legation/server.json"
        orphan = json.loads(place.read_text())["pid"]
        assert run(None, "start", work, SANDBOX_AGENT_BIN=binary)["stopReason"] == "end_turn"  # beside it
        held.kill()
        held.wait(60)
        assert run(None, "start", work, SANDBOX_AGENT_BIN=binary)["stopReason"] == "end_turn"  # after it
    finally:
        held.kill()
        held.communicate()
        with suppress(NameError, ProcessLookupError):
            os.kill(orphan, signal.SIGTERM)


@pytest.mark.slow
def test_a_prompt_longer_than_nodes_patience(server: Running, tmp_path: Path) -> None:
    found = run(server, "long", tmp_path / "work", str(LONG), limit=LONG + 120.0)
    assert found["stopReason"] == "end_turn"
    assert found["seconds"] >= LONG
