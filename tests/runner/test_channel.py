"""The way back to a runner: permissions that its caller decides, and the other commands."""

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.runner.caller_server import LIMIT, Caller, Fault, Request
from tests.runner.rig import texts
from tests.runner.test_runner import alive, config_of, scripted, started

from legation.errors import TimedOut
from legation.runner.config import choose_agent, read_config
from legation.runner.reporter import ReportTimes
from legation.runner.runner import RunnerTimes, run

pytestmark = pytest.mark.heavy

# Asks about two things, each behind words of its own, and says what it was answered.
ASKS = """
hello(); session(); p = prompted()
for n in (7, 8):
    update(f"before {n}")
    permission(n, title=f"t{n}", kind="edit", rawInput={"path": f"/tmp/{n}", "content": "x"},
               locations=[{"path": f"/tmp/{n}"}])
    update(f"after {n}")
    update(json.dumps(answer(n)["result"]))
done(p)
"""


def routed(caller: Caller, prompt: object = "go", **more: object) -> dict[str, object]:
    return config_of(caller, prompt, permissions="route", **more)


def outcomes(caller: Caller) -> list[dict[str, Any]]:
    return [json.loads(each)["outcome"] for each in texts(caller.notifications) if each.startswith("{")]


async def test_permissions_are_asked_at_home_in_their_place_and_answered_from_there(tmp_path: Path) -> None:
    async with Caller() as caller:
        async with started(tmp_path, routed(caller), agent=scripted(ASKS)) as ran:
            await caller.until(lambda each: len(each.asked) == 1)
            caller.put("answer", permission=caller.asked[0]["id"], outcome="approved", by="ada")
            await caller.until(lambda each: len(each.asked) == 2)
            caller.put("answer", permission=caller.asked[1]["id"], outcome="denied", message="not there")
            code, said = await ran.ended()
        assert code == 0, said
        assert [each["optionId"] for each in outcomes(caller)] == ["allow_once", "reject_once"]
        first = caller.asked[0]
        assert (first["title"], first["action"]["tool"], first["action"]["paths"]) == (
            "t7",
            "edit",
            ["/tmp/7"],
        )
        assert first["resolved"]["paths"] == [os.path.realpath("/tmp/7")]
        assert first["resolved"]["cwd"] == str(tmp_path / "work")
        assert {each["kind"] for each in first["options"]} >= {"allow_once", "reject_once"}
        # Its place: behind all that was said before, and nothing that was said later.
        place = next(n for n, each in enumerate(caller.taken) if each["kind"] == "permission_request")
        before = [text for each in caller.taken[:place] for text in texts(each["notifications"])]
        assert before == ["before 7"]
        resolved = [each["permission"] for each in caller.of("permission_resolved")]
        assert [(each["id"], each["outcome"], each["by"]) for each in resolved] == [
            (caller.asked[0]["id"], "approved", "ada"),
            (caller.asked[1]["id"], "denied", "caller"),
        ]
        [turn] = caller.of("turn_ended")
        assert turn["turn"]["stopReason"] == "end_turn"
        assert caller.taken[-1]["lastCommand"] == 2


async def test_silence_picks_a_reject_option(tmp_path: Path) -> None:
    async with Caller() as caller:
        fields = {"permissionTimeout": 0.2}
        async with started(tmp_path, routed(caller, **fields), agent=scripted(ASKS)) as ran:
            assert (await ran.ended())[0] == 0
        assert [each["optionId"] for each in outcomes(caller)] == ["reject_once", "reject_once"]
        assert {each["permission"]["outcome"] for each in caller.of("permission_resolved")} == {"expired"}
        assert caller.asked[0]["expiresAt"] == caller.asked[0]["askedAt"] + 200


@pytest.mark.parametrize("status", [200, 403])
async def test_an_approval_that_must_be_used_is_used_before_it_is_acted_on(
    tmp_path: Path, status: int
) -> None:
    async with Caller(use_status=status, answers={"outcome": "approved", "mustUse": True}) as caller:
        async with started(tmp_path, routed(caller), agent=scripted(ASKS)) as ran:
            assert (await ran.ended())[0] == 0
        assert [number for number, _ in caller.uses] == [1, 2]
        assert caller.uses[0][1]["resolved"]["paths"] == [os.path.realpath("/tmp/7")]
        wanted = "allow_once" if status == 200 else "reject_once"
        assert {each["optionId"] for each in outcomes(caller)} == {wanted}
        told = caller.of("permission_resolved")[0]["permission"]
        assert told.get("message") == (None if status == 200 else "not any more")


async def test_on_cancel_all_that_is_pending_is_answered_cancelled(tmp_path: Path) -> None:
    source = """
hello(); session(); p = prompted()
permission(7, title="t7"); permission(8, title="t8")
update(json.dumps(answer(7)["result"])); update(json.dumps(answer(8)["result"]))
done(p, "cancelled"); stay()
"""
    async with Caller() as caller:
        async with started(tmp_path, routed(caller), agent=scripted(source)) as ran:
            await caller.until(lambda each: len(each.asked) == 2)
            caller.put("cancel")
            code, said = await ran.ended()
        assert code == 0, said
        assert [each["outcome"] for each in outcomes(caller)] == ["cancelled", "cancelled"]
        assert {each["permission"]["outcome"] for each in caller.of("permission_resolved")} == {"cancelled"}
        last = caller.taken[-1]
        assert (last["kind"], last["stopReason"], last["lastCommand"]) == ("prompt_complete", "cancelled", 1)


async def test_cancelled_before_there_is_a_session_it_ends(tmp_path: Path) -> None:
    async with Caller() as caller:
        caller.put("cancel")
        async with started(tmp_path, routed(caller), agent=scripted("stay()")) as ran:
            assert (await ran.ended())[0] == 0
        assert (caller.taken[-1]["kind"], caller.taken[-1]["stopReason"]) == ("prompt_complete", "cancelled")


@pytest.mark.parametrize(
    "heeds",
    [
        "\nwhile True: time.sleep(600)",
        "\nread(); os._exit(3)",
        "\nread(); send(id=p, error={'code': -32603, 'message': 'aborted'}); stay()",
    ],
    ids=["not at all", "by its end", "with an error"],
)
async def test_a_cancel_is_no_failure_however_the_agent_takes_it(tmp_path: Path, heeds: str) -> None:
    source = f"import time\nhello(); session(); p = prompted(); update(str(os.getpid())){heeds}"
    async with Caller() as caller:
        async with started(tmp_path, routed(caller), agent=scripted(source)) as ran:
            await caller.until(lambda each: bool(each.notifications))
            caller.put("cancel")
            code, said = await ran.ended()
        last = caller.taken[-1]
        assert (code, last["kind"], last.get("stopReason")) == (0, "prompt_complete", "cancelled"), said
        assert not alive(int(texts(caller.notifications)[0]))


ECHO = """
hello(); session()
while True:
    message = read()
    if message.get("method") == "session/prompt":
        update("heard " + message["params"]["prompt"][0]["text"])
        done(message["id"])
"""


async def test_messages_are_further_turns_until_it_is_told_to_end(tmp_path: Path) -> None:
    async with Caller() as caller:
        config = routed(caller, "one", idleTimeout=600)
        async with started(tmp_path, config, agent=scripted(ECHO)) as ran:
            await caller.until(lambda each: len(each.of("turn_ended")) == 1)
            caller.put("message", prompt="two")
            caller.put("message", prompt=[{"type": "text", "text": "three"}])
            caller.put("end")
            code, said = await ran.ended()
        assert code == 0, said
        assert texts(caller.notifications) == ["heard one", "heard two", "heard three"]
        assert len(caller.of("turn_ended")) == 3
        assert caller.taken[-1]["kind"] == "prompt_complete"


async def test_without_messages_it_ends_when_its_idle_time_is_over(tmp_path: Path) -> None:
    async with Caller() as caller:
        async with started(tmp_path, routed(caller, "one", idleTimeout=0.3), agent=scripted(ECHO)) as ran:
            assert (await ran.ended())[0] == 0
        assert [each["kind"] for each in caller.taken[-2:]] == ["turn_ended", "prompt_complete"]


COUNTS = """
import time
hello(); session(); p = prompted(); update(str(os.getpid())); child = os.fork()
if not child:
    time.sleep(600)
update(str(child))
while True:
    update("tick"); time.sleep(0.01)
"""


def states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


async def test_paused_the_agent_and_what_it_started_stand_still_until_resumed(tmp_path: Path) -> None:
    async with Caller() as caller, started(tmp_path, routed(caller), agent=scripted(COUNTS)) as ran:
        await caller.until(lambda each: len(each.notifications) > 2)
        pids = [int(each) for each in texts(caller.notifications)[:2]]
        caller.put("pause")
        async with asyncio.timeout(LIMIT):
            while states(pids) != {"T"}:
                await asyncio.sleep(0.02)
        caller.put("resume")
        count = len(caller.notifications)
        await caller.until(lambda each: len(each.notifications) > count + 200)
        caller.put("pause")
        async with asyncio.timeout(LIMIT):
            while states(pids) != {"T"}:
                await asyncio.sleep(0.02)
            ran.process.kill()
            await ran.ended()
            while any(alive(pid) for pid in pids):  # also one that stands still goes with its keeper
                await asyncio.sleep(0.02)


async def test_a_command_is_acted_on_once_however_often_it_comes(tmp_path: Path) -> None:
    """The caller gives all commands again with each answer, the last first, and some that nobody understands."""
    async with Caller() as caller:
        async with started(tmp_path, routed(caller, "one", idleTimeout=600), agent=scripted(ECHO)) as ran:
            await caller.until(lambda each: len(each.of("turn_ended")) == 1)
            caller.put("message", prompt="two")
            caller.put("dance")
            caller.put("message")
            caller.put("message", prompt="three")
            await caller.until(lambda each: len(each.of("turn_ended")) == 3)
            caller.again = True
            caller.put("end")
            code, said = await ran.ended()
        assert code == 0, said
        assert texts(caller.notifications) == ["heard one", "heard two", "heard three"]
        assert said.count("is passed over") == 2
        assert caller.taken[-1]["lastCommand"] == 5


async def test_chaos_on_both_ways_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(20)
    faults: list[Fault | None] = [None, None, None, 500, 429, "reset", "lost"]

    def fault(_: Request) -> Fault | None:
        return chance.choice(faults)

    source = """
hello(); session()
while True:
    message = read()
    if message.get("method") == "session/prompt":
        for n in range(3):
            update(f"w{n}"); permission(100 + n, title=f"t{n}"); update(answer(100 + n)["result"]["outcome"]["optionId"])
        done(message["id"])
"""
    answers = {"outcome": "approved", "mustUse": True}
    async with Caller(fault=fault, poll_fault=lambda: fault(None), answers=answers) as caller:  # type: ignore[arg-type]
        async with started(tmp_path, routed(caller, idleTimeout=600), agent=scripted(source)) as ran:
            await caller.until(lambda each: len(each.of("turn_ended")) == 1)
            caller.put("message", prompt="again")
            caller.put("end")
            code, said = await ran.ended()
        assert code == 0, said
        turn = [text for n in range(3) for text in (f"w{n}", "allow_once")]
        assert texts(caller.notifications) == [*turn, *turn]
        assert len(caller.asked) == len({each["id"] for each in caller.asked}) == 6
        assert len(caller.of("permission_resolved")) == 6
        given = {each["id"] for each in caller.commands if each["kind"] == "answer"}
        assert {number for number, _ in caller.uses} == given


@pytest.mark.parametrize(("status", "code"), [(401, 4), (404, 10)])
async def test_a_caller_without_commands_is_told_so(tmp_path: Path, status: int, code: int) -> None:
    async with Caller(poll_fault=lambda: status) as caller:
        async with started(tmp_path, routed(caller), agent=scripted(ASKS)) as ran:
            found, said = await ran.ended()
        assert (found, f"answered {status}" in caller.taken[-1]["error"]["message"]) == (code, True), said


async def test_what_changed_is_reported_as_a_patch(tmp_path: Path) -> None:
    source = """
hello(); session(); p = prompted()
open("made.txt", "w").write("one\\n"); open("there.txt", "w").write("two\\n")
done(p)
"""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "there.txt").write_text("before\n")
    async with Caller() as caller:
        async with started(tmp_path, routed(caller), agent=scripted(source)) as ran:
            assert (await ran.ended())[0] == 0
        changes = caller.taken[-1]["changes"]
        assert {(each["path"], each["status"]) for each in changes["files"]} == {
            ("made.txt", "added"),
            ("there.txt", "modified"),
        }
        assert "-before\n+two" in changes["patch"]
        assert "+one" in changes["patch"]


async def test_without_the_caller_for_long_the_agent_is_stopped_and_the_spool_kept(tmp_path: Path) -> None:
    agent = scripted("hello(); session(); prompted(); update(str(os.getpid())); stay()")
    gone = False

    def fault(_: Request) -> Fault | None:
        return 503 if gone else None

    async with Caller(fault=fault) as caller:
        given = config_of(caller, "go", orphanAfter=5, flushTimeout=0.5, repoDir=str(tmp_path))
        config = read_config(json.dumps(given).encode())
        environ = {"CODING_AGENT_ACP_COMMAND": agent, "HOME": str(tmp_path)}
        choice = choose_agent(config, environ, tmp_path)
        times = RunnerTimes(ReportTimes(window=0.05, heartbeat=0.2, retry_most=0.5))
        running = asyncio.create_task(run(config, choice, tmp_path / "spool", times=times))
        await caller.until(lambda each: bool(each.notifications))
        gone = True
        async with asyncio.timeout(LIMIT):
            with pytest.raises(TimedOut):
                await running
        assert not alive(int(texts(caller.notifications)[0]))
        left = tmp_path / "spool" / "exit.json"
        assert json.loads(left.read_text())["code"] == 8
        gone = False  # a later one collects it
        async with asyncio.timeout(LIMIT):
            assert await run(config, choice, tmp_path / "spool", times=times) == 6
        assert "has taken nothing for 5 s" in caller.taken[-1]["error"]["message"]
        assert json.loads(left.read_text())["code"] == 6
        assert len(texts(caller.notifications)) == 1
