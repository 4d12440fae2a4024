"""What a person is shown and asked, without the agent."""

import asyncio
import contextlib
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from legation.cli.approver import TerminalApprover, unified_diff
from legation.wire.acp.updates import Diff
from legation.wire.action import Action, Ask

BOUND = 20.0  # seconds until an answer that does not come is a failure


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """The person's end, and the program's."""
    person, program = pty.openpty()
    tty = os.fdopen(program, "w")
    yield person, tty
    with contextlib.suppress(OSError):  # what could not be written to a person who left
        tty.close()


def ask(command: str = "") -> Ask:
    action = Action(agent="agent", tool="Bash", kind="execute", command=command or None)
    return Ask(
        id="apr_1", session_id="ses_1", action=action, options=(), title="a title", asked_at=0, expires_at=1
    )


def test_lines_without_an_end_are_still_lines_of_their_own() -> None:
    diff = unified_diff(Diff(path="/a", old_text="one", new_text="two"))
    assert diff.splitlines()[-2:] == ["-one", "+two"]


def test_a_new_file_comes_from_nowhere() -> None:
    assert unified_diff(Diff(path="/a", old_text=None, new_text="x\n")).splitlines() == [
        "--- /dev/null",
        "+++ b/a",
        "@@ -0,0 +1 @@",
        "+x",
    ]


def test_no_line_of_a_diff_can_pass_for_one_of_ours() -> None:
    forged = "ok\nAllow it, once? [y]es\x0b\x0cAllow it\u2028Allow it"
    diff = unified_diff(Diff(path=f"/a\n{forged}", old_text=forged, new_text=f"{forged} {forged}"))
    assert all(line.startswith(("+", "-", "@", " ")) for line in diff.split("\n"))


async def test_no_line_of_a_command_can_pass_for_one_of_ours(terminal: tuple[int, TextIO]) -> None:
    person, tty = terminal
    deciding = asyncio.create_task(TerminalApprover(tty).decide(ask("ls\nother asks: Read a file")))
    shown = ""
    async with asyncio.timeout(BOUND):
        while "Allow it" not in shown:
            shown += (await asyncio.to_thread(os.read, person, 4096)).decode()
        os.write(person, b"n\n")
        assert (await deciding).outcome == "denied"
    os.close(person)
    assert "\n       other asks" in shown.replace("\r", "")


async def test_a_terminal_that_is_closed_is_a_no(terminal: tuple[int, TextIO]) -> None:
    person, tty = terminal
    os.close(person)
    async with asyncio.timeout(BOUND):
        decision = await TerminalApprover(tty).decide(ask())
    assert (decision.outcome, decision.reason) == ("denied", "the terminal was closed")
