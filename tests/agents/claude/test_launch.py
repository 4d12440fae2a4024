"""The command line of a session, and the file beside it."""

from __future__ import annotations

import json
from pathlib import Path

from legation.agents.claude.launch import ClaudeLaunch, command_for, foreign_servers, write_servers
from legation.proc import Command
from legation.wire.acp.methods import McpServer

ID = "11111111-2222-4333-8444-555555555555"


def argv(launch: ClaudeLaunch, mcp_file: Path | None = None) -> tuple[str, ...]:
    base = Command(("env", "A=1", "claude"), Path("/elsewhere"), {}, "claude")
    command = command_for(base, launch, mcp_file)
    assert command.cwd == Path(launch.cwd)
    assert command.argv[:3] == base.argv
    return command.argv[3:]


def test_a_new_session_gets_the_id_that_we_chose() -> None:
    words = argv(ClaudeLaunch(ID, "/w"))
    assert f"--session-id={ID}" in words
    assert not [word for word in words if word.startswith("--resume")]


def test_a_resumed_one_keeps_its_id_and_a_fork_gets_another() -> None:
    assert f"--resume={ID}" in argv(ClaudeLaunch(ID, "/w", resumes=ID))
    assert "--fork-session" not in argv(ClaudeLaunch(ID, "/w", resumes=ID))
    forked = argv(ClaudeLaunch(ID, "/w", resumes="other"))
    assert {"--resume=other", "--fork-session", f"--session-id={ID}"} <= set(forked)


def test_only_a_trusted_folder_may_configure_the_agent() -> None:
    assert {"--setting-sources=", "--strict-mcp-config"} <= set(argv(ClaudeLaunch(ID, "/w")))
    trusted = argv(ClaudeLaunch(ID, "/w", trusted=True))
    assert "--setting-sources=project,local" in trusted
    assert "--strict-mcp-config" not in trusted
    assert "--permission-mode=default" in trusted


def test_servers_of_a_folder_above_count_only_if_it_is_trusted_too(tmp_path: Path) -> None:
    work = tmp_path / "outer" / "work"
    work.mkdir(parents=True)
    assert not foreign_servers(str(work), lambda folder: folder == str(work))
    (tmp_path / "outer" / ".mcp.json").write_text("{}")
    assert foreign_servers(str(work), lambda folder: folder == str(work))
    assert not foreign_servers(str(work), lambda folder: folder.startswith(str(tmp_path / "outer")))
    assert "--strict-mcp-config" in argv(ClaudeLaunch(ID, "/w", trusted=True, foreign_servers=True))


def test_folders_and_questions() -> None:
    words = argv(ClaudeLaunch(ID, "/w", directories=("/a", "/b"), questions=True))
    assert {"--add-dir=/a", "--add-dir=/b"} <= set(words)
    assert "--disallowed-tools=AskUserQuestion" not in words
    assert "--disallowed-tools=AskUserQuestion" in argv(ClaudeLaunch(ID, "/w"))


def test_servers_are_in_a_file_that_only_the_agent_can_read(tmp_path: Path) -> None:
    base = Command(("claude",), tmp_path, {"TMPDIR": str(tmp_path)}, "claude")
    servers = (
        McpServer.stdio("here", "run", ("-x",), {"KEY": "secret"}),
        McpServer.http("there", "https://mcp.test", {"Authorization": "secret"}),
    )
    file = write_servers(base, servers)
    assert file is not None
    assert (file.parent, file.stat().st_mode & 0o777) == (tmp_path, 0o600)
    assert json.loads(file.read_text())["mcpServers"] == {
        "here": {"type": "stdio", "command": "run", "args": ["-x"], "env": {"KEY": "secret"}},
        "there": {"type": "http", "url": "https://mcp.test", "headers": {"Authorization": "secret"}},
    }
    assert f"--mcp-config={file}" in argv(ClaudeLaunch(ID, "/w", mcp=servers), file)
    assert write_servers(base, ()) is None
