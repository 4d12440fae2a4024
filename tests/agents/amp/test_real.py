"""The real program, as far as it goes without Amp's server: what it can, how it asks, how it fails."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agents.amp.rig import WAIT, rig
from tests.agents.hostile_repository import hostile_repository

from legation.agents.amp.launch import write_settings
from legation.agents.amp.permissions import VARIABLE, Gate, GateQuestion, install_plugin, write_delegate
from legation.agents.native import PermissionDecision
from legation.agents.rpc import AgentRefused
from legation.errors import Forbidden
from legation.proc import ProcessLauncher, child_environment
from legation.testing.model.http import HttpAnswer, HttpConnection, HttpRequest, HttpServer
from legation.testing.recorder import Recorder, read_recording
from legation.wire.acp.rpc import ErrorCode

pytestmark = [pytest.mark.heavy, pytest.mark.network]

NOWHERE = "http://127.0.0.1:9"  # a port on which nothing listens
QUIET = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}
HARNESS = """
import plugin from '%s'
const handlers: any = {}
plugin({ on: (name: string, handler: any) => { handlers[name] = handler } })
for (const command of ['ls', 'rm', 'mv']) {
	const event = { toolUseID: 'toolu_' + command, tool: 'shell_command', input: { command }, thread: { id: 'T-1' } }
	console.log(JSON.stringify(await handlers['tool.call'](event)))
}
"""


def environment(place: Path, **more: str) -> dict[str, str]:
    given = {"AMP_API_KEY": "sgamp-not-a-key", "AMP_URL": f"{NOWHERE}/", **QUIET, **more}
    return child_environment(given, home=place, tmp=place)


async def run(*argv: str, cwd: Path, env: dict[str, str]) -> tuple[int, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(WAIT):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, (said or complained).decode()


@asynccontextmanager
async def gate(folder: Path) -> AsyncIterator[tuple[Gate, list[GateQuestion]]]:
    """Allows `ls`, `mv` with other arguments, and nothing else."""
    asked: list[GateQuestion] = []

    async def decided(question: GateQuestion) -> PermissionDecision:
        command = question.input["command"] if isinstance(question.input, dict) else ""
        other = {"command": "mv -n"} if command == "mv" else None
        return PermissionDecision(allowed=command in ("ls", "mv"), message="not that", params=other)

    def decide(question: GateQuestion) -> asyncio.Task[PermissionDecision]:
        asked.append(question)
        return asyncio.create_task(decided(question))

    folder.mkdir(parents=True)
    opened = Gate(folder, decide)
    await opened.open()
    try:
        yield opened, asked
    finally:
        await opened.close()


async def test_it_can_all_that_the_driver_has_a_use_for(amp: Path, tmp_path: Path) -> None:
    async with rig(tmp_path, argv=(str(amp),), env={"AMP_URL": NOWHERE, **QUIET}) as made:
        flags = made.agent.flags
        assert made.agent.info is not None
        assert made.agent.info.version.startswith("0.0.")
        await made.session()
    assert flags.has_plugins
    assert flags.has_permissions
    assert flags.can_continue
    assert "medium" in flags.modes
    for option in (
        "--stream-json",
        "--stream-json-thinking",
        "--stream-json-input",
        "--plugin-ready-timeout",
    ):
        assert flags.has(option)


async def test_without_a_key_it_is_told_to_sign_in(amp: Path, tmp_path: Path) -> None:
    env = {"AMP_URL": f"{NOWHERE}/", **QUIET}
    async with rig(tmp_path, argv=(str(amp),), env=env) as made:
        session = await made.session()
        with pytest.raises(AgentRefused, match="AMP_API_KEY") as caught:
            await made.ask(session, "hello")
    assert caught.value.error.code == ErrorCode.AUTH_REQUIRED
    assert "authToken" not in json.dumps(made.box.troubles)


async def test_a_server_that_is_not_there_is_told(amp: Path, tmp_path: Path) -> None:
    env = {"AMP_API_KEY": "sgamp-not-a-key", "AMP_URL": f"{NOWHERE}/", **QUIET}
    async with rig(tmp_path, argv=(str(amp),), env=env) as made:
        session = await made.session()
        with pytest.raises(AgentRefused, match="connect") as caught:
            await made.ask(session, "hello")
    assert caught.value.error.code == ErrorCode.INTERNAL_ERROR
    assert made.left_over() == []


async def test_its_prompt_waits_until_the_plugin_has_called(amp: Path, tmp_path: Path) -> None:
    """A server that knows its user and no more: Amp gets as far as its plugins."""
    paths: list[str] = []

    async def answer(request: HttpRequest, connection: HttpConnection) -> None:
        paths.append(request.target)
        user = {"id": "user_1", "username": "x", "email": "x@example.invalid", "features": []}
        found: object = user if "getUserInfo" in request.target else [] if "load" in request.target else {}
        await connection.send(HttpAnswer(200, {"ok": True, "result": found}))

    server = HttpServer(answer)
    url = f"http://127.0.0.1:{await server.start()}/"
    recorder = Recorder(ProcessLauncher(), tmp_path / "recordings")
    env = {"AMP_API_KEY": "sgamp-not-a-key", "AMP_URL": url, **QUIET}
    try:
        async with rig(tmp_path, argv=(str(amp),), env=env, launcher=recorder) as made:
            session = await made.session()
            with pytest.raises(AgentRefused, match="error inside Amp"):
                await made.ask(session, "hello")
    finally:
        await server.stop()
    turn = read_recording(recorder.recordings[-1])
    written = [entry.msg for entry in turn if entry.dir == "in"]
    assert written == [
        {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "hello"}]}}
    ]
    assert any("thread-actors" in path for path in paths)


@pytest.mark.parametrize("name", ["short", "long" * 30])
async def test_its_permission_rules_come_to_the_gate(name: str, amp: Path, tmp_path: Path) -> None:
    async with gate(tmp_path / name) as (_, asked):
        settings = write_settings(tmp_path / name, write_delegate(tmp_path / name), ())
        found = [
            await run(
                *(str(amp), "--settings-file", str(settings), "permissions", "test", "--json"),
                *("shell_command", "--command", command),
                cwd=tmp_path,
                env=environment(tmp_path),
            )
            for command in ("ls", "rm")
        ]
    assert [json.loads(said)["action"] for _, said in found] == ["allow", "reject"]
    assert json.loads(found[1][1])["error"] == "not that\n"
    assert [(each.way, each.tool, each.input) for each in asked] == [
        ("delegate", "shell_command", {"command": "ls"}),
        ("delegate", "shell_command", {"command": "rm"}),
    ]


@pytest.mark.parametrize("name", ["short", "long" * 30])
async def test_its_plugins_come_to_the_gate(name: str, amp: Path, tmp_path: Path) -> None:
    """In the runtime that Amp runs its plugins with, which is its own program."""
    install_plugin(tmp_path)
    harness = tmp_path / "harness.ts"
    harness.write_text(HARNESS % (tmp_path / ".config" / "amp" / "plugins" / "legation.ts"))
    async with gate(tmp_path / name) as (opened, asked):
        env = environment(tmp_path, BUN_BE_BUN="1", **{VARIABLE: str(opened.door)})
        code, said = await run(str(amp), "run", str(harness), cwd=tmp_path, env=env)
        assert opened.greeted.is_set()
        assert opened.asked == {"toolu_ls", "toolu_rm", "toolu_mv"}
    assert code == 0
    assert [json.loads(line) for line in said.splitlines()] == [
        {"action": "allow"},
        {"action": "reject-and-continue", "message": "not that"},
        {"action": "modify", "input": {"command": "mv -n"}},
    ]
    assert [each.way for each in asked] == ["plugin"] * 3


async def test_a_plugin_with_nobody_behind_it_refuses(amp: Path, tmp_path: Path) -> None:
    install_plugin(tmp_path)
    harness = tmp_path / "harness.ts"
    harness.write_text(HARNESS % (tmp_path / ".config" / "amp" / "plugins" / "legation.ts"))
    for door in ("", str(tmp_path / "nobody")):
        env = environment(tmp_path, BUN_BE_BUN="1", **{VARIABLE: door})
        _, said = await run(str(amp), "run", str(harness), cwd=tmp_path, env=env)
        assert [json.loads(line)["action"] for line in said.splitlines()] == ["reject-and-continue"] * 3


async def test_a_hostile_repository_runs_nothing_unless_trusted(amp: Path, tmp_path: Path) -> None:
    """That Amp itself would run its plugin is shown first."""
    hostile = hostile_repository(tmp_path / "work", tmp_path / "marks")
    await run(str(amp), "plugins", "list", cwd=hostile.folder, env=environment(tmp_path))
    assert hostile.left() == {"amp-plugin"}
    (hostile.marks / "amp-plugin").unlink()
    env = {"AMP_API_KEY": "sgamp-not-a-key", "AMP_URL": f"{NOWHERE}/", **QUIET}
    async with rig(tmp_path, argv=(str(amp),), env=env) as made:
        with pytest.raises(Forbidden, match="is not trusted"):
            await made.session()
        shutil.rmtree(hostile.folder / ".amp")
        session = await made.session()
        with pytest.raises(AgentRefused, match="connect"):
            await made.ask(session, "hello")
    assert hostile.left() == set()
