from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from legation.agents.rpc import RpcFault
from legation.host import create_default_terminal_handler
from legation.host.requests import services as terminals_module
from legation.host.requests.services import (
    DefaultTerminals,
    OutputTail,
    TerminalProcess,
)
from legation.proc import Child, Command, Pipes, ProcessLauncher, child_environment
from legation.proc.child import Exit
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import CreateTerminalRequest, NameValue, TerminalExitStatus
from legation.wire.acp.rpc import ErrorCode

LIMIT = 30.0  # a loaded machine's time for some short programs
PAUSE = 0.01  # between two looks at what another process does
WAITING = "import signal; print('up', end='', flush=True); signal.pause()"


class Watched:
    """A launcher that remembers what it was asked for, and waits for its gate."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.children: list[Child] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child:
        self.commands.append(command)
        self.asked.set()
        await self.gate.wait()
        self.children.append(await ProcessLauncher().spawn(command, pipes))
        return self.children[-1]


@pytest.fixture
def launcher() -> Watched:
    return Watched()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("work", "home", "other"):
        (tmp_path / name).mkdir()
    return Path(os.path.realpath(tmp_path / "work"))


@pytest.fixture
async def terminals(launcher: Watched, work: Path) -> AsyncIterator[DefaultTerminals]:
    environment = child_environment({}, home=work.parent / "home", tmp=work.parent / "home")
    made = create_default_terminal_handler(
        launcher, environment, lambda session: _folders(session, work), forbidden=ForbiddenPlaces()
    )
    async with asyncio.timeout(LIMIT):
        yield made
        await made.dispose()
    assert all(gone(child.pid) for child in launcher.children)


def _folders(session: str, work: Path) -> list[Path] | None:
    return None if session == "unknown" else [work]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def program(source: str, *args: str, session: str = "s", limit: int | None = None) -> CreateTerminalRequest:
    return CreateTerminalRequest(
        session_id=session, command=sys.executable, args=("-c", source, *args), output_byte_limit=limit
    )


def shell(line: str, *, cwd: str | None = None, env: dict[str, str] | None = None) -> CreateTerminalRequest:
    pairs = tuple(NameValue(name=name, value=value) for name, value in (env or {}).items())
    return CreateTerminalRequest(session_id="s", command="sh", args=("-c", line), cwd=cwd, env=pairs)


async def run(terminals: DefaultTerminals, request: CreateTerminalRequest) -> tuple[str, bool]:
    """Its output to the end; it must have succeeded."""
    terminal = await terminals.create(request)
    assert await terminals.wait_for_exit(request.session_id, terminal) == TerminalExitStatus(exit_code=0)
    response = await terminals.output(request.session_id, terminal)
    assert response.exit_status == TerminalExitStatus(exit_code=0)
    await terminals.release(request.session_id, terminal)
    return response.output, response.truncated


async def shows(terminals: DefaultTerminals, terminal: str, text: str, session: str = "s") -> None:
    async with asyncio.timeout(LIMIT):
        while text not in (await terminals.output(session, terminal)).output:
            await asyncio.sleep(PAUSE)


async def waiting(terminals: DefaultTerminals, session: str = "s") -> str:
    terminal = await terminals.create(program(WAITING, session=session))
    await shows(terminals, terminal, "up", session)
    return terminal


async def refusal(terminals: DefaultTerminals, request: CreateTerminalRequest) -> tuple[int, str]:
    with pytest.raises(RpcFault) as caught:
        await terminals.create(request)
    return caught.value.error.code, caught.value.error.message


async def test_both_outputs_come_in_their_order(terminals: DefaultTerminals) -> None:
    source = "import os\nfor n in range(200): os.write(1 + n % 2, b'%d ' % n)"
    assert await run(terminals, program(source)) == ("".join(f"{n} " for n in range(200)), False)


async def test_arguments_arrive_as_they_are(terminals: DefaultTerminals) -> None:
    odd = ["", " ", "a b", "'", '"', "$HOME", "`id`", "$(id)", "*", "\\n", "a\nb", "-e", "--", ";", "é", "#"]
    output, _ = await run(terminals, program("import json, sys; print(json.dumps(sys.argv[1:]))", *odd))
    assert json.loads(output) == odd


@pytest.mark.parametrize("written", [b"a\r\nb\r\n", b"no newline", b"\n\n", b"\r50%\r100%", "é\0ü".encode()])
async def test_output_is_kept_byte_by_byte(terminals: DefaultTerminals, written: bytes) -> None:
    source = f"import os; os.write(1, {written!r})"
    assert await run(terminals, program(source)) == (written.decode(), False)


async def test_an_unfinished_line_is_seen_while_the_command_runs(terminals: DefaultTerminals) -> None:
    terminal = await waiting(terminals)
    response = await terminals.output("s", terminal)
    assert (response.output, response.truncated, response.exit_status) == ("up", False, None)


async def test_the_beginning_of_a_long_line_is_cut_off_between_characters(
    terminals: DefaultTerminals,
) -> None:
    source = "print('é' * 1_500_000, end='END')"
    output, truncated = await run(terminals, program(source, limit=1_000_000))
    assert truncated
    assert output == "é" * ((1_000_000 - 3) // 2) + "END"


async def test_a_megabyte_is_kept_unless_the_agent_says_otherwise_and_never_more_than_the_cap(
    terminals: DefaultTerminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "print('x' * 3_000_000, end='')"
    output, truncated = await run(terminals, program(source))
    assert (len(output), truncated) == (terminals_module.OUTPUT_LIMIT, True)
    assert await run(terminals, program(source, limit=0)) == ("", True)
    monkeypatch.setattr(terminals_module, "OUTPUT_CAP", 2_000_000)
    output, truncated = await run(terminals, program(source, limit=2**63))
    assert (len(output), truncated) == (2_000_000, True)


async def test_an_exit_is_told_by_its_code_or_its_signal(terminals: DefaultTerminals) -> None:
    for line, expected in (
        ("exit 7", TerminalExitStatus(exit_code=7)),
        ("kill -SEGV $$", TerminalExitStatus(signal="SIGSEGV")),
        ("kill -40 $$", TerminalExitStatus(signal="SIG40")),
    ):
        terminal = await terminals.create(shell(line))
        assert await terminals.wait_for_exit("s", terminal) == expected
        assert (await terminals.output("s", terminal)).exit_status == expected


async def test_a_program_that_is_not_there_is_told_as_a_shell_does(terminals: DefaultTerminals) -> None:
    terminal = await terminals.create(CreateTerminalRequest(session_id="s", command="no-such-program"))
    assert await terminals.wait_for_exit("s", terminal) == TerminalExitStatus(exit_code=127)
    assert "no-such-program" in (await terminals.output("s", terminal)).output


async def test_input_has_ended_from_the_start(terminals: DefaultTerminals) -> None:
    assert await run(terminals, CreateTerminalRequest(session_id="s", command="cat")) == ("", False)


async def test_many_may_wait_and_one_that_gives_up_takes_nothing_along(terminals: DefaultTerminals) -> None:
    terminal = await waiting(terminals)
    waits = [asyncio.create_task(terminals.wait_for_exit("s", terminal)) for _ in range(5)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait({waits[0]}, timeout=LIMIT)
    assert (await terminals.output("s", terminal)).exit_status is None
    await terminals.kill("s", terminal)
    assert await asyncio.gather(*waits[1:]) == [TerminalExitStatus(signal="SIGTERM")] * 4


async def test_a_killed_terminal_can_be_read_until_it_is_released(terminals: DefaultTerminals) -> None:
    terminal = await waiting(terminals)
    await terminals.kill("s", terminal)
    for _ in range(2):
        response = await terminals.output("s", terminal)
        assert (response.output, response.exit_status) == ("up", TerminalExitStatus(signal="SIGTERM"))
        await terminals.kill("s", terminal)  # once more changes nothing
    await terminals.release("s", terminal)
    with pytest.raises(RpcFault, match="no such terminal"):
        await terminals.output("s", terminal)


@pytest.mark.heavy
async def test_a_command_that_ignores_term_is_killed(terminals: DefaultTerminals) -> None:
    source = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
    )
    terminal = await terminals.create(program(source))
    await shows(terminals, terminal, "up")
    await terminals.kill("s", terminal)
    assert await terminals.wait_for_exit("s", terminal) == TerminalExitStatus(signal="SIGKILL")


@pytest.mark.parametrize("ending", ["kill", "release"])
async def test_the_whole_tree_dies(terminals: DefaultTerminals, ending: str) -> None:
    source = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: print(f"<{os.getpid()}>", end="", flush=True); signal.pause()
signal.pause()
"""
    terminal = await terminals.create(program(source))
    await shows(terminals, terminal, ">")
    grandchild = int((await terminals.output("s", terminal)).output.strip("<>"))
    assert not gone(grandchild)
    end: Callable[..., object] = getattr(terminals, ending)
    await end("s", terminal)  # type: ignore[misc]
    assert gone(grandchild)


async def test_cleanup_ends_all_terminals_of_that_session_only(
    terminals: DefaultTerminals, launcher: Watched
) -> None:
    for session in ("s", "s", "other"):
        await waiting(terminals, session)
    await terminals.cleanup_session("s")
    await terminals.cleanup_session("never seen")
    assert [gone(child.pid) for child in launcher.children] == [True, True, False]


async def test_cleanup_waits_for_a_command_whose_release_was_given_up(
    terminals: DefaultTerminals, launcher: Watched
) -> None:
    terminal = await waiting(terminals, "s")
    releasing = asyncio.create_task(terminals.release("s", terminal))
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert not gone(launcher.children[0].pid)
    await terminals.cleanup_session("s")
    assert gone(launcher.children[0].pid)


async def test_cleanup_waits_for_a_command_that_is_just_starting_and_ends_it(
    terminals: DefaultTerminals, launcher: Watched
) -> None:
    launcher.gate.clear()
    creating = asyncio.create_task(terminals.create(program(WAITING)))
    await launcher.asked.wait()
    cleaning = asyncio.create_task(terminals.cleanup_session("s"))
    await asyncio.sleep(0)
    launcher.gate.set()
    await cleaning
    assert [gone(child.pid) for child in launcher.children] == [True]
    with pytest.raises(RpcFault, match="closed"):
        await creating


async def test_dispose_ends_everything_and_nothing_starts_after_it(
    terminals: DefaultTerminals, launcher: Watched
) -> None:
    for session in ("a", "b"):
        await waiting(terminals, session)
    await terminals.dispose()
    assert [gone(child.pid) for child in launcher.children] == [True, True]
    assert (await refusal(terminals, program(WAITING)))[0] == ErrorCode.INTERNAL_ERROR


async def test_a_session_has_so_many_terminals_and_no_more(
    terminals: DefaultTerminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals_module, "TERMINALS_PER_SESSION", 2)
    first, _ = await asyncio.gather(*[terminals.create(shell("exit")) for _ in range(2)])
    assert (await refusal(terminals, shell("exit")))[0] == ErrorCode.INVALID_REQUEST
    await terminals.create(program("", session="other"))
    await terminals.release("s", first)
    await terminals.create(shell("exit"))


async def test_starts_at_the_same_time_count_too(
    terminals: DefaultTerminals, launcher: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals_module, "TERMINALS_PER_SESSION", 1)
    launcher.gate.clear()
    creating = asyncio.create_task(terminals.create(shell("exit")))
    await launcher.asked.wait()
    assert (await refusal(terminals, shell("exit")))[0] == ErrorCode.INVALID_REQUEST
    launcher.gate.set()
    await creating


async def test_a_failed_start_leaves_nothing_behind(terminals: DefaultTerminals) -> None:
    for number in range(3):
        await refusal(terminals, program("", session=f"s{number}", limit=-1))
    assert terminals._shelves == {}


async def test_the_environment_is_the_given_one_with_the_agents_variables_and_nothing_of_ours(
    launcher: Watched, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "hunter2")
    odd = {"QUOTED": "a 'b' \"c\" $HOME `id` \\ \n=é", "EMPTY": "", "GIVEN": "replaced"}
    terminals = DefaultTerminals(
        launcher, lambda session: {"GIVEN": "1", "SESSION": session}, forbidden=ForbiddenPlaces()
    )
    source = "import json, os; print(json.dumps(dict(os.environ)))"
    env = tuple(NameValue(name=name, value=value) for name, value in odd.items())
    async with asyncio.timeout(LIMIT):
        output, _ = await run(
            terminals,
            CreateTerminalRequest(
                session_id="s9", command=sys.executable, args=("-c", source), env=env, cwd=str(work)
            ),
        )
    seen = json.loads(output)
    assert {name: seen[name] for name in odd} == odd
    assert seen["SESSION"] == "s9"
    # The rest is the launcher's token, and what a shell and Python themselves add.
    assert seen.keys() - odd.keys() - {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"} == {
        "SESSION",
        "LEGATION_CHILD",
    }


async def test_the_agents_variables_work_for_its_command_but_not_for_the_launcher(
    terminals: DefaultTerminals, launcher: Watched, work: Path
) -> None:
    tool = work / "tool"
    tool.write_text("#!/bin/sh\necho from the path of the agent\n")
    tool.chmod(0o755)
    env = (
        NameValue(name="PATH", value=f"{work}:/usr/bin:/bin"),
        NameValue(name="LD_PRELOAD", value=""),
    )
    request = CreateTerminalRequest(session_id="s", command="tool", env=env)
    assert await run(terminals, request) == ("from the path of the agent\n", False)
    seen = launcher.commands[0].env
    assert str(work) not in seen["PATH"]
    assert "LD_PRELOAD" not in seen


@pytest.mark.parametrize("name", ["", "A B", "A-B", "1A", "A=B", "-p", "é", "A\n", "LEGATION_CHILD"])
async def test_a_variable_that_a_shell_cannot_pass_on_is_refused(
    terminals: DefaultTerminals, name: str
) -> None:
    secret = secrets.token_hex()
    code, message = await refusal(terminals, shell("exit", env={name: secret}))
    assert code == ErrorCode.INVALID_PARAMS
    assert secret not in message


@pytest.mark.parametrize("command", ["", "-c", "a\0b", "\ud800"])
async def test_what_is_no_program_is_refused(terminals: DefaultTerminals, command: str) -> None:
    request = CreateTerminalRequest(session_id="s", command=command)
    assert (await refusal(terminals, request))[0] == ErrorCode.INVALID_PARAMS


async def test_a_command_runs_where_it_is_told_and_else_in_the_sessions_first_folder(
    terminals: DefaultTerminals, work: Path
) -> None:
    (work / "sub").mkdir()
    (work / "link").symlink_to(work / "sub")
    for cwd, expected in (
        (None, work),
        (work, work),
        (work / "sub", work / "sub"),
        (work / "link", work / "sub"),
    ):
        output, _ = await run(terminals, shell("pwd -P", cwd=None if cwd is None else str(cwd)))
        assert output == f"{expected}\n"


async def test_the_first_folder_is_where_commands_run_even_inside_another(
    launcher: Watched, work: Path
) -> None:
    (work / "sub").mkdir()
    terminals = DefaultTerminals(
        launcher, {"PATH": os.defpath}, {"s": [work / "sub", work]}.get, forbidden=ForbiddenPlaces()
    )
    async with asyncio.timeout(LIMIT):
        assert await run(terminals, shell("pwd -P")) == (f"{work / 'sub'}\n", False)
        assert await run(terminals, shell("pwd -P", cwd=str(work))) == (f"{work}\n", False)


@pytest.mark.parametrize(
    "cwd", ["", ".", "work", "{work}/..", "{work}/../other", "{work}/out", "/", "/\0", "/\ud800"]
)
async def test_a_place_outside_the_sessions_folders_is_refused(
    terminals: DefaultTerminals, launcher: Watched, work: Path, cwd: str
) -> None:
    (work / "out").symlink_to(work.parent / "other")
    code, _ = await refusal(terminals, shell("exit", cwd=cwd.replace("{work}", str(work))))
    assert code == ErrorCode.INVALID_PARAMS
    assert launcher.commands == []


async def test_a_place_that_is_not_there_and_a_session_that_is_not_are_refused(
    terminals: DefaultTerminals, work: Path
) -> None:
    assert (await refusal(terminals, shell("exit", cwd=f"{work}/missing")))[0] == ErrorCode.INVALID_PARAMS
    assert (await refusal(terminals, program("", session="unknown")))[0] == ErrorCode.INVALID_PARAMS


async def test_without_folders_the_place_must_be_named(launcher: Watched, work: Path) -> None:
    terminals = DefaultTerminals(launcher, {"PATH": os.defpath}, forbidden=ForbiddenPlaces())
    assert (await refusal(terminals, shell("exit")))[0] == ErrorCode.INVALID_PARAMS
    async with asyncio.timeout(LIMIT):
        assert await run(terminals, shell("pwd -P", cwd=str(work))) == (f"{work}\n", False)


async def test_a_flood_ends_when_it_is_killed(terminals: DefaultTerminals) -> None:
    terminal = await terminals.create(
        CreateTerminalRequest(session_id="s", command="yes", output_byte_limit=100)
    )
    async with asyncio.timeout(LIMIT):
        while not (await terminals.output("s", terminal)).truncated:
            await asyncio.sleep(PAUSE)
    await terminals.kill("s", terminal)
    response = await terminals.output("s", terminal)
    assert len(response.output) == 100
    assert response.exit_status == TerminalExitStatus(signal=signal.SIGTERM.name)


async def test_another_sessions_terminal_is_not_there(terminals: DefaultTerminals) -> None:
    terminal = await waiting(terminals)
    for use in (terminals.output, terminals.wait_for_exit, terminals.kill, terminals.release):
        with pytest.raises(RpcFault, match="no such terminal"):
            await use("other", terminal)
    assert (await terminals.output("s", terminal)).exit_status is None


async def test_who_ends_a_terminal_that_is_being_ended_waits_for_all_of_it() -> None:
    """The command has ended already, and what it started has not."""
    left = asyncio.Event()

    class Dying:
        pid = 1

        async def stop(self, grace: float) -> None:
            assert grace == 0.0
            await left.wait()

    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    terminal = TerminalProcess(cast(Any, Dying()), OutputTail(10), cast(Any, ended))
    first = asyncio.create_task(terminal.stop())
    await asyncio.sleep(0)
    ended.set_result(Exit(code=0, signal=None))
    second = asyncio.create_task(terminal.stop())
    await asyncio.wait({first, second}, timeout=0.05)
    assert not second.done()
    left.set()
    await asyncio.gather(first, second)
