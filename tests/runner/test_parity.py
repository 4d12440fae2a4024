"""What arrives is what the agent said: byte for byte, by callbacks as in a host, held against a tee on its output."""

import asyncio
import json
import random
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import real_agents
from tests.agents.bytes_agent import PRELUDE
from tests.agents.real_acp_agents import CLAUDE, COMMAND, OPENCODE, Kind, scripted_model, start_of, variables
from tests.cli.command import rehearse
from tests.host.rig import rig
from tests.runner.caller_server import TOKEN, Caller
from tests.runner.test_runner import REHEARSAL, SECRET, config_of, played, started
from tests.wire.universal.test_real_logs import EVERYTHING

from legation.host.options import AgentDefinition
from legation.redact import Redactor
from legation.runner.reporter import NOTIFICATIONS
from legation.secret import Secret
from legation.testing.model import ScriptedModel
from legation.wire.acp.updates import Text

pytestmark = pytest.mark.heavy

TEE = str(Path(__file__).with_name("tee_agent.py"))


class Line(msgspec.Struct):
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"")


def teed(command: str, path: Path) -> str:
    return shlex.join([sys.executable, TEE, str(path), *shlex.split(command)])


def said(path: Path) -> list[bytes]:
    """The params of each `session/update` on the agent's output."""
    found = []
    for line in path.read_bytes().splitlines():
        try:
            message = msgspec.json.decode(line, type=Line)
        except msgspec.MsgspecError:
            continue
        if message.method == "session/update":
            found.append(bytes(message.params))
    return found


def arrived(caller: Caller) -> bytes:
    """The bytes of all notifications, a comma between two."""
    bodies = {each.report["sequence"]: each.body for each in caller.requests}
    parts = [bodies[number].split(b'"notifications":[', 1)[1] for number in sorted(bodies) if number]
    return b",".join(filter(None, (part.rsplit(b'],"snapshot":', 1)[0] for part in parts)))


def hidden(lines: list[bytes], value: str = SECRET, name: str = "ANTHROPIC_API_KEY") -> list[bytes]:
    redactor = Redactor([Secret(value, name)])
    return [redactor.bytes(line) for line in lines]


async def in_host(place: Path, command: str, prompt: str, **env: str) -> list[bytes]:
    program, *args = shlex.split(command)
    redactor = Redactor([Secret(SECRET, "ANTHROPIC_API_KEY")])
    async with rig(place, redact=redactor.bytes) as made:
        definition = AgentDefinition(command=program, args=tuple(args), cwd=made.work, env=env)
        agent = await made.host.spawn_agent(definition)
        opened = await made.host.create_session(agent.agent_id, cwd=made.work, session_id="s")
        await made.host.prompt(opened.session_id, (Text(text=prompt),))
        await made.host.dispose_agent(agent.agent_id)
        stream = made.host.session("s").stream
        return [each.raw async for each in stream.subscribe(follow=False) if each.type in NOTIFICATIONS]


# Without what is no update at all: lines that are skipped with a word, and what is of no session.
STEPS = [each for each in EVERYTHING if not each.startswith(("garbage", "late", "ask something"))]


async def test_all_that_the_rehearsal_agent_can_say_arrives_as_it_was_said(tmp_path: Path) -> None:
    tee = tmp_path / "tee"
    async with Caller() as caller:
        code, words = await played(tmp_path, caller, rehearse(*STEPS), agent=teed(REHEARSAL, tee))
        assert code == 0, words
        told = said(tee)
        assert len(told) > 60
        assert arrived(caller) == b",".join(told)


def generated(chance: random.Random, count: int) -> list[bytes]:
    """Updates as agents may write them: odd spaces and escapes, `_meta`, members that nobody knows, new kinds."""
    lines = []
    for number in range(count):
        kind = chance.choice(
            ["agent_message_chunk", "agent_thought_chunk", "current_mode_update", "of_tomorrow", "plan"]
        )
        update: dict[str, Any] = {"sessionUpdate": kind}
        if kind.endswith("chunk"):
            text = chance.choice(
                ["plain", "é\u2028", "\ud83d", f"key {SECRET}", "x" * chance.randint(0, 3000), '"\\/']
            )
            update["content"] = {"type": "text", "text": f"{number} {text}"}
        elif kind == "current_mode_update":
            update["currentModeId"] = chance.choice(["plan", "code"])
        elif kind == "plan":
            update["entries"] = [{"content": "a", "priority": "low", "status": "pending", "vendor": 1.50}]
        if chance.random() < 0.3:
            update["_meta"] = {"nested": [None, {"deep": number}]}
        params: dict[str, Any] = {"sessionId": "s1", "update": update}
        if chance.random() < 0.3:
            params = {"_meta": {"first": True}, "update": update, "vendor": [1, 2], "sessionId": "s1"}
        text = json.dumps(
            params,
            ensure_ascii=chance.random() < 0.5 or "\\ud83d" in json.dumps(update),
            separators=chance.choice([(",", ":"), (", ", ": "), (" , ", " :  ")]),
        )
        lines.append(text.encode())
    return lines


PLAYS = """
hello(); session(); prompt = prompted()
for each in open(sys.argv[1], "rb").read().split(b"\\n"):
    raw(b'{"jsonrpc":"2.0","method":"session/update","params":' + each + b"}\\n")
done(prompt)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_generated_sessions_arrive_as_they_were_said_and_as_a_host_has_them(
    tmp_path: Path, seed: int
) -> None:
    lines = generated(random.Random(seed), 400)
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    agent = shlex.join([sys.executable, "-I", "-S", "-c", PRELUDE + PLAYS, str(tmp_path / "lines")])
    tee = tmp_path / "tee"
    async with Caller() as caller:
        code, words = await played(tmp_path, caller, "go", agent=teed(agent, tee), ANTHROPIC_API_KEY=SECRET)
        assert code == 0, words
        assert len(lines) == 400
        assert arrived(caller) == b",".join(hidden(lines))
        assert SECRET.encode() not in b"".join(each.body for each in caller.requests)
        assert TOKEN.encode() not in b"".join(each.body for each in caller.requests)
    (tmp_path / "host").mkdir()
    assert await in_host(tmp_path / "host", agent, "go") == hidden(lines)


# As claude-agent-acp and OpenCode wrote them, but for what they say of their commands.
RECORDED = sorted(Path(__file__).with_name("recordings").glob("*.jsonl"))
PLAYS_AGAIN = """
lines = open(sys.argv[1], "rb").read().splitlines()
hello(); session(json.loads(lines[0])["params"]["sessionId"]); prompt = prompted()
for each in lines:
    raw(each + b"\\n")
done(prompt)
"""


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_recorded_sessions_arrive_as_they_were_said_and_as_a_host_has_them(
    tmp_path: Path, path: Path
) -> None:
    agent = shlex.join([sys.executable, "-I", "-S", "-c", PRELUDE + PLAYS_AGAIN, str(path)])
    told = said(path)
    async with Caller() as caller:
        code, words = await played(tmp_path, caller, "go", agent=agent)
        assert code == 0, words
        assert arrived(caller) == b",".join(told)
        assert len(caller.notifications) == len(told) > 5
    (tmp_path / "host").mkdir()
    assert await in_host(tmp_path / "host", agent, "go") == told


def _ask(model: ScriptedModel, kind: Kind) -> None:
    name, arguments = kind.command(COMMAND)
    model.call_tool(name, arguments)
    model.say("It is done.")


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [CLAUDE, OPENCODE], ids=lambda kind: kind.name)
async def test_a_real_agent_arrives_as_it_spoke(tmp_path: Path, kind: Kind) -> None:
    """With a command that it asks about, which is approved."""
    start = await asyncio.to_thread(start_of, kind)
    tee = tmp_path / "tee"
    async with scripted_model() as model, Caller() as caller:
        _ask(model, kind)
        env: dict[str, Any] = {**start.env, **variables(model)}
        agent = teed(shlex.join(start.argv), tee)
        fields = {"env": sorted(env)}
        async with started(tmp_path, config_of(caller, "Run it", **fields), agent=agent, **env) as run:
            code, words = await run.ended(300)
        assert code == 0, words
        told = said(tee)
        assert len(told) > 3
        assert arrived(caller) == b",".join(hidden(told, "not-a-key", "OPENAI_API_KEY"))
        assert (tmp_path / "work" / "made").is_dir()
        assert caller.taken[-1]["stopReason"] == "end_turn"


# A receiver in another language, from the text of the seed.


@asynccontextmanager
async def node_receiver() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    try:
        node = real_agents.node()
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    program = Path(__file__).with_name("node_receiver.mjs")
    process = await asyncio.create_subprocess_exec(
        str(node), str(program), TOKEN, stdout=subprocess.PIPE, limit=2**26
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/", process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


LONG = "hello(); session(); p = prompted(); [update(f'w{n}') for n in range(130)]; update('x' * 1500000); [update('y' * 300000) for n in range(5)]; done(p)"


@pytest.mark.parametrize(
    ("agent", "prompt", "count"),
    [
        (REHEARSAL, rehearse("say one", "run true", "flood 120", "say two"), None),
        (shlex.join([sys.executable, "-I", "-S", "-c", PRELUDE + LONG]), "go", 136),
    ],
    ids=["rehearsal", "long"],
)
async def test_a_receiver_written_from_the_seed_accepts_every_report(
    tmp_path: Path, agent: str, prompt: str, count: int | None
) -> None:
    async with node_receiver() as (url, node):
        async with started(tmp_path, config_of(url, prompt), agent=agent) as run:
            code, words = await run.ended()
        assert code == 0, words
        node.terminate()
        assert node.stdout is not None
        lines = [json.loads(line) for line in (await node.stdout.read()).splitlines()]
    assert [each for each in lines if "wrong" in each] == []
    assert (
        lines[0]["kind"] == "heartbeat"
    )  # others come at any time, and a report that is answered late comes again
    reports = {each["sequence"]: each for each in lines if each["kind"] != "heartbeat"}
    assert reports[max(reports)]["kind"] == "prompt_complete"
    assert count is None or sum(each["notifications"] for each in reports.values()) == count
    assert {each["kind"] for each in reports.values()} <= SEEDS_KINDS


SEEDS_KINDS = {"session_update", "prompt_complete", "prompt_failed"}


async def test_kinds_beyond_the_seed_can_be_passed_over(tmp_path: Path) -> None:
    """The order and the notifications are those of the seed: a receiver that knows no more loses nothing."""
    asks = "hello(); session(); p = prompted(); update('a'); permission(7, title='t'); update(str(answer(7)['result'])); done(p)"
    agent = shlex.join([sys.executable, "-I", "-S", "-c", PRELUDE + asks])
    async with node_receiver() as (url, node):
        fields = {"permissions": "route", "permissionTimeout": 0.5}
        async with started(tmp_path, config_of(url, "go", **fields), agent=agent) as run:
            code, words = await run.ended()
        assert code == 0, words
        node.terminate()
        assert node.stdout is not None
        lines = [json.loads(line) for line in (await node.stdout.read()).splitlines()]
    assert [each for each in lines if "wrong" in each] == []
    reports = {each["sequence"]: each for each in lines if each["kind"] != "heartbeat"}
    assert [*reports] == [*range(1, len(reports) + 1)]
    kinds = [each["kind"] for each in reports.values() if each["kind"] not in SEEDS_KINDS]
    assert kinds == ["permission_request", "permission_resolved", "turn_ended"]
    assert sum(each["notifications"] for each in reports.values()) == 2
