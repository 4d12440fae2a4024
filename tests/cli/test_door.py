"""The door of `legation exec`, without an agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from legation.approvals.policies import Policies
from legation.approvals.trace.export import whole_lines
from legation.cli.door import own_door, who
from legation.host.requests.handlers import ApproveAll, Approver
from legation.wire.action import Action, Ask, Decision

BOUND = 20.0  # seconds until a decision that does not come is a failure


class Stuck:
    """A person who never answers."""

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def decide(self, _ask: Ask) -> Decision:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


class Says:
    def __init__(self, said: Decision | Exception) -> None:
        self._said = said

    async def decide(self, _ask: Ask) -> Decision:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


@asynccontextmanager
async def door(folder: Path, person: Approver, cancelled: list[str] | None = None) -> AsyncIterator[Approver]:
    gone = cancelled if cancelled is not None else []
    made = own_door(
        Policies(None),
        person,
        session_id="ses_1",
        trace=folder / "trace.jsonl",
        cancel_turn=lambda: gone.append("cancelled"),
        timeout=600,
    )
    async with asyncio.timeout(BOUND), made as approver:
        yield approver


def edit(folder: Path) -> Ask:
    action = Action(agent="claude", tool="edit", kind="edit", paths=(str(folder / "a.py"),))
    return Ask(
        id="apr_1", session_id="ses_1", action=action, options=(), title="t", asked_at=0, cwd=str(folder)
    )


def happened(folder: Path) -> list[str]:
    steps = [json.loads(line)["step"] for line in whole_lines(folder / "trace.jsonl")]
    return [f"{step['step']}/{step['reason']}" if "reason" in step else step["step"] for step in steps]


async def test_whoever_no_longer_waits_takes_the_question_back_from_the_person(tmp_path: Path) -> None:
    person = Stuck()
    async with door(tmp_path, person) as approver:
        deciding = asyncio.create_task(approver.decide(edit(tmp_path)))
        await person.asked.wait()
        deciding.cancel()
        await person.left.wait()
        await asyncio.gather(deciding, return_exceptions=True)
        assert deciding.cancelled()
    assert happened(tmp_path)[-1] == "cancelled/caller-gone"


async def test_a_person_who_cancels_ends_the_turn_and_the_trace_says_so(tmp_path: Path) -> None:
    cancelled: list[str] = []
    person = Says(Decision("cancelled", "person ada", "the turn was cancelled in the terminal"))
    async with door(tmp_path, person, cancelled) as approver:
        decision = await approver.decide(edit(tmp_path))
    assert (decision.outcome, decision.by) == ("cancelled", "person ada")
    assert cancelled == ["cancelled"]
    assert happened(tmp_path)[-1] == "cancelled/turn-cancelled"


async def test_an_asker_with_a_defect_is_a_no(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with door(tmp_path, Says(RuntimeError("broken"))) as approver:
        decision = await approver.decide(edit(tmp_path))
    assert (decision.outcome, decision.by) == ("denied", "legation")
    assert "a defect" in caplog.text


async def test_what_cannot_be_traced_does_not_pass(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trace.jsonl").mkdir()
    async with door(tmp_path, ApproveAll()) as approver:
        decision = await approver.decide(edit(tmp_path))
    assert (decision.outcome, decision.by) == ("denied", "legation")
    assert str(tmp_path) not in str(decision.message)  # the agent hears nothing of our folders
    assert "cannot write the trace" in caplog.text


@pytest.mark.parametrize(
    ("by", "kind", "name"),
    [
        ("person ada", "person", "ada"),
        ("person ada lovelace", "person", "ada lovelace"),
        ("flag --yes", "flag", "--yes"),
        ("demo:autopilot", "demo", "autopilot"),
        ("unattended", "unattended", "unattended"),
    ],
)
def test_who_decided_is_named_in_the_trace(by: str, kind: str, name: str) -> None:
    assert (who(by).kind, who(by).id) == (kind, name)
