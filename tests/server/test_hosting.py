"""The host of a real server's services, with the real rehearsal agent in a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import BOTH, Rig, open_rig

from legation.approvals.approval import Approval, ApprovalAnswer, ApprovalState
from legation.approvals.trace.entries import TraceFilter, detail, entries
from legation.approvals.transitions import get
from legation.errors import AlreadyAnswered, Unavailable
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc.tree import process
from legation.server.instance import Services
from legation.wire.acp.updates import Text

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LIMIT = 60.0  # seconds: an agent's time to start, ask and end on a busy machine
YES, NO = ApprovalAnswer(approve=True), ApprovalAnswer(approve=False, message="Not that one.")

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: runs, kind: execute, action: allow}
  - {id: edits, kind: edit, action: supervisor, when: {paths: {under: $WORKSPACE}}}
  - {id: rest, action: deny, message: Leave it.}
"""


@dataclass
class Hosted:
    rig: Rig
    host: AcpHost
    work: Path
    session: Session

    @property
    def services(self) -> Services:
        return self.rig.services

    async def play(self, *steps: str) -> PromptResult:
        return await play(self.session, *steps)

    async def asked(self, *steps: str) -> tuple[Approval, "asyncio.Task[PromptResult]"]:
        """Until it waits."""
        told: asyncio.Queue[Approval] = asyncio.Queue()
        self.services.inbox.on_change(lambda approval, _: told.put_nowait(approval))
        prompting = asyncio.create_task(self.play(*steps))
        return await told.get(), prompting

    async def answers(self) -> list[dict[str, Any]]:
        found = self.session.stream.subscribe(follow=False)
        return [json.loads(event.payload) async for event in found if event.type == "permission-answered"]

    async def steps(self, approval: Approval) -> list[str]:
        services = self.services
        found = await detail(services.database, services.sealer, "local", approval.trace_id)
        return [step.step for step in found.steps]


async def play(session: Session, *steps: str) -> PromptResult:
    return await session.prompt((Text(text="\n".join(("#!rehearse", *steps))),))


async def open_session(services: Services, work: Path) -> Session:
    host = await services.hosts.host()
    work.mkdir(exist_ok=True)
    definition = AgentDefinition(
        id="rehearsal",
        command=sys.executable,
        args=("-m", "legation.agents.rehearsal", "--execute"),
        cwd=work,
    )
    agent = await host.spawn_agent(definition)
    opened = await host.create_session(agent.agent_id, cwd=work)
    return host.session(opened.session_id)


@pytest.fixture(params=BOTH)
async def hosted(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hosted]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with (
        asyncio.timeout(LIMIT),
        open_rig(request.param, tmp_path / "data", request, policy=policy) as rig,
    ):
        session = await open_session(rig.services, tmp_path / "work")
        yield Hosted(rig, await rig.services.hosts.host(), tmp_path / "work", session)


async def test_what_a_rule_allows_is_not_asked(hosted: Hosted) -> None:
    await hosted.play("ask run true")
    [answered] = await hosted.answers()
    assert (answered["outcome"], answered["by"]) == ("approved", "policy")
    assert answered["reason"].startswith("p:runs: ")
    services = hosted.services
    page = await entries(services.database, services.sealer, "local", TraceFilter(session=hosted.session.id))
    assert [(entry.tool, entry.policy_rule) for entry in page.items] == [("execute", "p:runs")]


async def test_what_is_asked_is_answered_in_the_servers_inbox(hosted: Hosted) -> None:
    approval, prompting = await hosted.asked("ask write a.txt hello")
    assert approval.session_id == hosted.session.id
    await hosted.services.inbox.resolve(hosted.rig.server, approval.id, YES)  # as the CLI of the owner does
    await prompting
    assert (hosted.work / "a.txt").read_text() == "hello"
    assert await hosted.steps(approval) == ["proposed", "decided", "resolved", "consumed"]


async def test_a_no_in_the_inbox_is_told_to_the_agent(hosted: Hosted) -> None:
    approval, prompting = await hosted.asked("ask write a.txt hello")
    await hosted.services.inbox.resolve(hosted.rig.server, approval.id, NO)
    await prompting
    assert not (hosted.work / "a.txt").exists()
    [answered] = await hosted.answers()
    assert (answered["outcome"], answered["by"], answered["message"]) == (
        "denied",
        "process:server",
        "Not that one.",
    )


async def test_what_a_rule_denies_is_denied_with_its_message(hosted: Hosted) -> None:
    await hosted.play("ask something")
    [answered] = await hosted.answers()
    assert (answered["outcome"], answered["by"], answered["message"]) == ("denied", "policy", "Leave it.")


async def test_a_cancelled_turn_cancels_its_approval(hosted: Hosted) -> None:
    approval, prompting = await hosted.asked("ask write a.txt hello")
    await hosted.session.cancel()
    assert (await prompting).stop_reason == "cancelled"
    await hosted.services.inbox.settle()
    services = hosted.services
    while (ended := await services.database.read(get, "local", approval.id)).status is ApprovalState.PENDING:
        await asyncio.sleep(0.01)  # the fixture bounds it
    assert ended.status is ApprovalState.CANCELLED
    with pytest.raises(AlreadyAnswered):
        await services.inbox.resolve(hosted.rig.server, approval.id, YES)
    assert await hosted.steps(approval) == ["proposed", "decided", "cancelled"]
    assert not (hosted.work / "a.txt").exists()


async def test_a_rules_own_time_decides_and_not_the_hosts(hosted: Hosted) -> None:
    approval, prompting = await hosted.asked("ask write a.txt hello")
    clock = hosted.rig.clock
    while not prompting.done():
        clock.advance(30)
        await asyncio.sleep(0.01)
    [answered] = await hosted.answers()
    assert (answered["outcome"], answered["by"]) == ("expired", "policy")
    assert (await hosted.steps(approval))[-1] == "expired"


async def test_with_the_server_its_agents_and_their_questions_end(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with asyncio.timeout(LIMIT):
        async with open_rig("sqlite", tmp_path / "data", request, policy=policy) as rig:
            hosting = rig.services.hosts
            session = await open_session(rig.services, tmp_path / "work")
            hosted = Hosted(rig, await hosting.host(), tmp_path / "work", session)
            approval, prompting = await hosted.asked("ask write a.txt hello")
            pid = session.agent.processes[0]
        await asyncio.gather(prompting, return_exceptions=True)
        assert process(pid) is None
        with pytest.raises(Unavailable):
            await hosting.host()
        async with open_rig("sqlite", tmp_path / "data", request, policy=policy) as again:
            found = await again.services.database.read(get, "local", approval.id)
            assert found.status is ApprovalState.CANCELLED


HOST_TO_KILL = """
import asyncio, sys
from pathlib import Path
from tests.server.test_hosting import open_session, play
from legation.clock import SystemClock
from legation.server.instance import open_instance
from legation.settings import load

async def main(folder):
    settings = load({"data_dir": folder / "data", "port": 0}, {"HOME": str(folder)})
    async with open_instance(settings, mode="server", clock=SystemClock(), stop=lambda: None) as (services, _):
        session = await open_session(services, folder / "work")
        print(session.agent.processes[0], flush=True)
        await play(session, "ignore-signals", "ignore-stdin-eof", "say deaf", "stall-hard 300")

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_what_a_killed_server_left_is_gone_with_the_next_start(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST_TO_KILL, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
    ) as server:
        assert server.stdout
        pid = int(await asyncio.to_thread(server.stdout.readline))
        os.kill(pid, signal.SIGSTOP)  # so that it stays whatever it hears of its client's end
        server.kill()
    assert process(pid) is not None
    async with open_rig("sqlite", tmp_path / "data", request):
        assert process(pid) is None


def test_a_server_without_sessions_does_not_load_the_host(tmp_path: Path) -> None:
    source = """
import asyncio, sys
from pathlib import Path
from legation.clock import SystemClock
from legation.server.instance import open_instance
from legation.settings import load

async def main(folder):
    settings = load({"data_dir": folder, "port": 0}, {"HOME": str(folder)})
    async with open_instance(settings, mode="server", clock=SystemClock(), stop=lambda: None):
        print([name for name in sys.modules if name.startswith(("legation.host", "legation.agents"))])

asyncio.run(main(Path(sys.argv[1])))
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        timeout=LIMIT,
        check=True,
    )
    assert done.stdout == "[]\n"


async def test_the_owner_answers_by_the_local_cli_what_a_session_asks_and_the_transcript_has_the_name(
    hosted: Hosted,
) -> None:
    approval, prompting = await hosted.asked("ask write a.txt hello")
    rig = hosted.rig
    headers = {"authorization": f"Bearer {rig.services.own_token.reveal()}"}
    answer = await rig.client.post(f"/approvals/{approval.id}/approve", headers=headers)
    assert answer.status_code == 200, answer.text
    await prompting
    [answered] = await hosted.answers()
    assert (answered["outcome"], answered["by"]) == ("approved", f"user:{rig.services.installed.user}")
    assert answered["byName"] == "owner"
