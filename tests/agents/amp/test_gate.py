"""The gate by itself: INV-G1 to INV-G3."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from legation.agents.amp.launch import write_settings
from legation.agents.amp.permissions import Gate, GateQuestion, install_plugin, write_delegate
from legation.agents.native import PermissionDecision
from legation.agents.rpc import REQUESTS_AT_ONCE, TOO_MANY
from legation.errors import ConfigInvalid
from legation.wire.acp.methods import McpServer

WAIT = 10.0  # seconds, the test's patience
PLUGIN = {"way": "plugin", "id": "t1", "tool": "Bash", "input": {"b": 1, "a": 2}}
DELEGATE = {"way": "delegate", "tool": "Bash", "input": {"a": 2, "b": 1}}


class Decider:
    def __init__(self) -> None:
        self.asked: list[GateQuestion] = []
        self.answers: list[asyncio.Future[PermissionDecision]] = []
        self.tasks: list[asyncio.Task[PermissionDecision]] = []

    def __call__(self, question: GateQuestion) -> asyncio.Task[PermissionDecision]:
        answer: asyncio.Future[PermissionDecision] = asyncio.get_running_loop().create_future()
        self.asked.append(question)
        self.answers.append(answer)
        self.tasks.append(asyncio.create_task(_wait(answer)))
        return self.tasks[-1]

    async def taken_back(self) -> bool:
        await asyncio.wait({self.tasks[-1]}, timeout=WAIT)
        return self.tasks[-1].cancelled()


async def _wait(answer: asyncio.Future[PermissionDecision]) -> PermissionDecision:
    return await answer


@asynccontextmanager
async def opened(
    folder: Path, tell_refused: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[Gate, Decider]]:
    decider = Decider()
    gate = Gate(folder, decider, tell_refused=tell_refused)
    await gate.open()
    try:
        yield gate, decider
    finally:
        await gate.close()
        await gate.close()


async def ask(gate: Gate, question: object) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(str(gate.door))
    text = question if isinstance(question, bytes) else json.dumps(question).encode()
    try:
        writer.write(text + b"\n")
        async with asyncio.timeout(WAIT):
            answer = await reader.readline()
    finally:
        writer.close()
    found = json.loads(answer)
    assert isinstance(found, dict)
    return found


async def until(condition: list[object] | list[GateQuestion], count: int) -> None:
    async with asyncio.timeout(WAIT):
        while len(condition) < count:
            await asyncio.sleep(0)


async def test_a_call_that_comes_by_both_ways_is_decided_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        both = [asyncio.create_task(ask(gate, each)) for each in (PLUGIN, DELEGATE)]
        await until(decider.asked, 1)
        decider.answers[0].set_result(PermissionDecision(allowed=True))
        assert await asyncio.gather(*both) == [{"allow": True}] * 2
        assert len(decider.asked) == 1
        again = asyncio.create_task(ask(gate, PLUGIN))
        await until(decider.asked, 2)
        decider.answers[1].set_result(PermissionDecision(allowed=False, message="once is enough"))
        assert await again == {"allow": False, "message": "once is enough"}


async def test_other_arguments_are_for_the_way_that_can_take_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        asking = asyncio.create_task(ask(gate, DELEGATE))
        await until(decider.asked, 1)
        decider.answers[0].set_result(PermissionDecision(allowed=True, params={"c": 3}))
        assert (await asking)["allow"] is False
        asking = asyncio.create_task(ask(gate, {**PLUGIN, "input": {"d": 4}}))
        await until(decider.asked, 2)
        decider.answers[1].set_result(PermissionDecision(allowed=True, params={"c": 4}))
        assert await asking == {"allow": True, "input": {"c": 4}}
        assert await ask(gate, {**DELEGATE, "input": {"c": 4}}) == {"allow": True}


@pytest.mark.parametrize(
    "question", [b"", b"{", b"[]", {"way": "window"}, {"tool": "Bash"}, {"way": "plugin", "tool": 5}]
)
async def test_what_cannot_be_read_is_refused(question: object, tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        assert (await ask(gate, question))["allow"] is False
        assert decider.asked == []


async def test_a_decision_that_fails_is_no_consent(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        asking = asyncio.create_task(ask(gate, PLUGIN))
        await until(decider.asked, 1)
        decider.answers[0].set_exception(ZeroDivisionError())
        with pytest.raises(json.JSONDecodeError):  # no answer at all, which its askers take for a no
            await asking


async def test_a_question_whose_asker_is_gone_is_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        _, writer = await asyncio.open_unix_connection(str(gate.door))
        writer.write(json.dumps(PLUGIN).encode() + b"\n")
        await until(decider.asked, 1)
        writer.close()
        assert await decider.taken_back()


async def test_a_turn_that_ends_answers_nobody_any_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        asking = asyncio.create_task(ask(gate, PLUGIN))
        await until(decider.asked, 1)
        gate.cancel_all()
        assert await decider.taken_back()
        assert not asking.done()
        await gate.close()
        with pytest.raises(json.JSONDecodeError):
            await asking


async def test_a_greeting_is_no_question(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gate, decider):
        assert not gate.greeted.is_set()
        await ask(gate, {"way": "plugin", "hello": True})
        assert gate.greeted.is_set()
        assert decider.asked == []


def test_a_plugin_that_was_changed_is_put_right(tmp_path: Path) -> None:
    install_plugin(tmp_path)
    (plugin,) = (tmp_path / ".config" / "amp" / "plugins").iterdir()
    whole = plugin.read_text()
    plugin.write_text("export default function () {}")
    install_plugin(tmp_path)
    assert plugin.read_text() == whole


def test_a_home_without_room_for_the_plugin_is_named(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("")
    with pytest.raises(ConfigInvalid, match="cannot put Legation's plugin into the home of Amp"):
        install_plugin(tmp_path)


def test_settings_are_for_their_owner_alone(tmp_path: Path) -> None:
    server = McpServer.http("remote", "https://mcp.example", {"authorization": "a-secret"})
    path = write_settings(tmp_path, write_delegate(tmp_path), (server,))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    settings = json.loads(path.read_text())
    assert settings["amp.permissions"] == [{"tool": "*", "action": "delegate", "to": str(tmp_path / "ask")}]
    assert settings["amp.mcpServers"]["remote"]["headers"] == {"authorization": "a-secret"}
    assert settings["amp.dangerouslyAllowAll"] is False


async def test_so_many_may_ask_at_once_and_no_more(tmp_path: Path) -> None:
    told: list[str] = []
    async with opened(tmp_path, told.append) as (gate, decider):
        asking = [
            asyncio.create_task(ask(gate, {**PLUGIN, "id": str(number)}))
            for number in range(REQUESTS_AT_ONCE)
        ]
        await until(decider.asked, REQUESTS_AT_ONCE)
        reader, writer = await asyncio.open_unix_connection(str(gate.door))
        assert await asyncio.wait_for(reader.read(), WAIT) == b""
        writer.close()
        assert told == [TOO_MANY]
        for answer in decider.answers:
            answer.set_result(PermissionDecision(allowed=True))
        assert await asyncio.gather(*asking) == [{"allow": True}] * REQUESTS_AT_ONCE
