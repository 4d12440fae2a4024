"""What is recorded of the real Codex, and played again to the driver without it.

python -m tests.agents.codex.scenarios      # records all of them anew; look at the difference before you keep it
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tests import real_agents
from tests.agents.codex import mcp_server
from tests.agents.codex.person import BLUE, QUESTION, Person
from tests.agents.codex.real_codex import (
    IMPATIENT,
    RealCodex,
    add_file,
    ask,
    open_with,
    patch,
    real_codex,
    run,
)
from tests.host.rig import NO, YES
from tools.schemas.codex import PROGRAM

from legation.host.session import Session
from legation.proc import ProcessLauncher
from legation.testing.model import ScriptedModel, Text, Thinking, ToolCall
from legation.testing.recorder import Recorder
from legation.wire.acp.methods import McpServer
from legation.wire.action import Decision

RECORDINGS = Path(__file__).with_name("recordings")
KEPT_MODELS = ("gpt-5.5", "gpt-6.1-sol")
NOISE = ("remoteControl/status/changed", "configWarning", "account/rateLimits/updated")  # and nothing to see
PLAN = Text("<proposed_plan>\n1. Write planned.txt\n</proposed_plan>\n")


@dataclass(frozen=True)
class Scenario:
    """`script` is for the model; `play` is what is done, with the real agent and with the recording alike."""

    script: Callable[[ScriptedModel], None]
    play: Callable[[RealCodex], Awaitable[Session]]


async def answered(at: RealCodex, turn: asyncio.Task[object], *answers: Decision) -> None:
    before = len(at.hand.asked)
    for count, answer in enumerate(answers, start=before + 1):
        await at.hand.until_asked(count)
        at.hand.answer(at.hand.asked[-1].id, answer)
    await turn


def _turn_script(model: ScriptedModel) -> None:
    model.reply(Thinking("Let me see."), Text("First a file, in pieces."), add_file("a.txt", "one"))
    model.reply(patch("*** Update File: a.txt\n*** Move to: b.txt\n@@\n-one\n+two\n"))
    model.reply(run("cat b.txt"))
    model.reply(run("rm b.txt"))
    model.say("Done.")


async def _turn(at: RealCodex) -> Session:
    session = await at.open()
    await answered(at, asyncio.create_task(ask(session)), YES, YES, YES, NO)
    return session


def _plan_script(model: ScriptedModel) -> None:
    model.reply(PLAN)
    model.reply(add_file("planned.txt", "planned"))
    model.say("Carried out.")


async def _plan(at: RealCodex) -> Session:
    session = await at.open()
    await at.made.host.set_mode(session.id, "plan")
    await answered(at, asyncio.create_task(ask(session)), YES, YES)
    return session


def _asking_script(model: ScriptedModel) -> None:
    model.reply(QUESTION)
    for name in ("echo", "look", "ask"):
        model.reply(ToolCall(f"mcp__echo.{name}", {"text": name}))
    model.say("Asked.")


async def _asking(at: RealCodex) -> Session:
    session = await open_with(at, McpServer.stdio("echo", sys.executable, (mcp_server.__file__,)))
    await answered(at, asyncio.create_task(ask(session)), NO, YES, YES)
    return session


def _sub_agent_script(model: ScriptedModel) -> None:
    sub = model.when("for the sub-agent")
    begin = {"message": "for the sub-agent", "agent_type": "default"}
    model.reply(ToolCall("multi_agent_v1.spawn_agent", begin))
    model.say("Delegated.")
    sub.reply(run("ls"))
    sub.say("The sub-agent has done it.")


async def _sub_agent(at: RealCodex) -> Session:
    session = await at.open()
    await answered(at, asyncio.create_task(ask(session)), NO)
    return session


def _failing_script(model: ScriptedModel) -> None:
    model.fail(400, "that is no request")
    model.cut(Text("The beginning"))
    model.say("All of it.")
    model.reply(add_file("a.txt", "a"))


async def _failing(at: RealCodex) -> Session:
    session = await at.open()
    for _ in range(2):
        await ask(session)
    before = len(at.hand.asked)
    turn = asyncio.create_task(ask(session))
    await at.hand.until_asked(before + 1)
    await session.cancel()
    await turn
    return session


SCENARIOS = {
    "turn": Scenario(_turn_script, _turn),
    "plan": Scenario(_plan_script, _plan),
    "asking": Scenario(_asking_script, _asking),
    "sub_agent": Scenario(_sub_agent_script, _sub_agent),
    "failing": Scenario(_failing_script, _failing),
}


async def record(name: str, scenario: Scenario, codex: Path, place: Path) -> None:
    recorder = Recorder(ProcessLauncher(), place / "recorded", longest=4000)
    async with real_codex(codex, place, *IMPATIENT, launcher=recorder, questions=Person(BLUE)) as at:
        scenario.script(at.model)
        await scenario.play(at)
        await asyncio.sleep(0.5)  # a sub-agent may be at its last words
    (made,) = recorder.recordings
    lines = [_neutral(line, place) for line in made.read_text().splitlines()]
    (RECORDINGS / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines if line))


def _neutral(line: str, place: Path) -> bytes:
    """Without what is of this machine, or long and of no use here."""
    words = {
        str(place / "work"): "/w",
        f"{place.name}/work": "w",
        mcp_server.__file__: "/a/mcp_server.py",
        sys.executable: "python",
    }
    for found, word in words.items():
        line = line.replace(found, word)
    entry = msgspec.json.decode(line)
    message = entry["msg"]
    if entry["dir"] == "err" or (isinstance(message, dict) and message.get("method") in NOISE):
        return b""
    models = message.get("result", {}).get("data") if isinstance(message, dict) else None
    if models and "supportedReasoningEfforts" in models[0]:
        message["result"]["data"] = [each for each in models if each["model"] in KEPT_MODELS]
    if entry["dir"] == "start":
        message["env"] = {}
    return msgspec.json.encode(entry)


async def _record_all() -> None:
    codex = next((real_agents.install("codex") / "node_modules").glob(PROGRAM))
    RECORDINGS.mkdir(exist_ok=True)
    for name, scenario in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as place:
            await record(name, scenario, codex, Path(place))


if __name__ == "__main__":
    asyncio.run(_record_all())
