import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.host.rig import NO, YES, Hand, go, of_type, play, rig, until_type

from legation.agents.acp import AcpAgent
from legation.host.options import Limits
from legation.host.requests.handlers import ApproveAll, Approver, DenyAll
from legation.host.session import Session
from legation.store.codec import Append, Op
from legation.store.jsonl import JsonlBackend
from legation.testing.clock import FakeClock
from legation.wire.action import MAX_PLACES, Ask, Decision

FULL_OPTIONS = "hello(); session(); prompt = prompted(); permission(1, title='t')\n"
TELL = "update(json.dumps(answer(1))); done(prompt); stay()"


async def answers(session: Session) -> list[dict[str, object]]:
    return [json.loads(event.payload) for event in await of_type(session, "permission-answered")]


async def told(session: Session) -> list[dict[str, object]]:
    """What the scripted agent says that it was told."""
    found = await of_type(session, "agent-message-chunk")
    return [json.loads(json.loads(event.payload)["content"]["text"]) for event in found]


async def selected(session: Session) -> object:
    (heard,) = await told(session)
    return cast(dict[str, dict[str, object]], heard["result"])["outcome"]


class Says:
    """An approver with one answer, which may be none at all."""

    def __init__(self, decision: object) -> None:
        self._decision = decision

    async def decide(self, _ask: Ask) -> Decision:
        if isinstance(self._decision, Exception):
            raise self._decision
        return cast(Decision, self._decision)


PREFERS_ALWAYS = Says(Decision("approved", "test", "for ever", option_id="allow_always"))
INVENTS = Says(Decision("maybe", "test", "who knows"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("approver", "outcome", "by", "option"),
    [
        (ApproveAll(), "approved", "flag --yes", "allow_once"),
        (PREFERS_ALWAYS, "approved", "test", "allow_once"),
        (DenyAll(), "denied", "unattended", "reject_once"),
        (Says(RuntimeError("no")), "denied", "legation", "reject_once"),
        (Says(None), "denied", "legation", "reject_once"),
        (INVENTS, "denied", "legation", "reject_once"),
    ],
)
async def test_a_decision_is_recorded_once_and_told_as_a_once_option(
    tmp_path: Path, approver: Approver, outcome: str, by: str, option: str
) -> None:
    async with rig(tmp_path, approver=approver) as made:
        session = await made.script(FULL_OPTIONS + TELL)
        await go(session)
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"], answered["optionId"]) == (outcome, by, option)
        assert answered["reason"]
        assert await selected(session) == {"outcome": "selected", "optionId": option}


async def test_an_approval_that_can_only_be_given_for_ever_is_a_refusal_and_says_so(tmp_path: Path) -> None:
    options = "[option for option in OPTIONS if option['kind'] != 'allow_once']"
    source = f"hello(); session(); prompt = prompted(); permission(1, title='t', options={options})\n{TELL}"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"], answered["optionId"]) == (
            "denied",
            "legation",
            "reject_once",
        )
        assert "flag --yes approved it" in str(answered["reason"])


async def test_silence_is_a_refusal(tmp_path: Path) -> None:
    clock, hand = FakeClock(), Hand()
    async with rig(tmp_path, approver=hand, clock=clock, limits=Limits(permission=30, idle=10_000)) as made:
        session = await made.script(FULL_OPTIONS + TELL)
        prompting = asyncio.create_task(go(session))
        await hand.until_asked()
        await clock.until_sleeping(2)
        clock.advance(30)
        await prompting
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"]) == ("expired", "timeout")
        assert await selected(session) == {"outcome": "selected", "optionId": "reject_once"}
        assert hand.withdrawn == [hand.asked[0].id]


async def test_a_cancelled_turn_cancels_its_permission(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "ask something"))
        await hand.until_asked()
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"]) == ("cancelled", "client")
        assert "optionId" not in answered
        assert hand.withdrawn == [hand.asked[0].id]


async def test_a_permission_asked_after_the_cancel_is_cancelled_at_once(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted(); update('"ready"')
while read()["method"] != "session/cancel": pass
permission(1, title="t"); update(json.dumps(answer(1))); done(prompt, "cancelled"); stay()
"""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        await prompting
        (answered,) = await answers(session)
        assert answered["outcome"] == "cancelled"
        assert hand.asked == []


async def test_a_question_taken_back_at_once_is_superseded(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.rehearse()
        await play(session, "ask-withdraw something")
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"]) == ("superseded", "agent")


async def test_a_question_taken_back_later_is_answered_with_the_error_and_nobody_is_left_asked(
    tmp_path: Path,
) -> None:
    source = """
hello(); session(); prompt = prompted(); permission(1, title="t")
send(id="f", method="fs/read_text_file", params={}); answer("f")
send(method="$/cancel_request", params={"requestId": 1})
update(json.dumps(answer(1))); done(prompt); stay()
"""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script(source)
        await go(session)
        (heard,) = await told(session)
        assert cast(dict[str, object], heard["error"])["code"] == -32800
        (answered,) = await answers(session)
        assert answered["outcome"] == "superseded"
        assert hand.withdrawn == [ask.id for ask in hand.asked]


async def test_the_agents_death_supersedes_its_question(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.script(FULL_OPTIONS + "os._exit(3)")
        with pytest.raises(Exception, match="exit code 3"):
            await go(session)
        (answered,) = await answers(session)
        assert answered["outcome"] == "superseded"


async def test_two_permissions_at_once_are_answered_each_by_its_own_decision(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted(); permission(1, title="one"); permission(2, title="two")
for number in (2, 1): update(json.dumps(answer(number)))
done(prompt); stay()
"""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        await hand.until_asked(2)
        one, two = hand.asked
        hand.answer(two.id, NO)
        await until_type(session, "permission-answered")
        assert [json.loads(e.payload)["state"] for e in await of_type(session, "turn-state")][
            -1
        ] == "requires-action"
        hand.answer(one.id, YES)
        await prompting
        assert [(each["id"], each["outcome"]) for each in await answers(session)] == [
            (two.id, "denied"),
            (one.id, "approved"),
        ]
        assert [json.loads(e.payload)["state"] for e in await of_type(session, "turn-state")] == [
            *("running", "requires-action", "requires-action", "running", "idle")
        ]


async def test_an_answer_after_the_turn_is_not_sent(tmp_path: Path) -> None:
    source = FULL_OPTIONS + "done(prompt); update(json.dumps(answer(1))); done(prompted()); stay()"
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script(source)
        await go(session)
        await until_type(session, "agent-message-chunk")
        assert await selected(session) == {"outcome": "cancelled"}
        await go(session)
        (answered,) = await answers(session)
        assert answered["outcome"] == "cancelled"
        assert len(hand.withdrawn) == len(hand.asked)


@pytest.mark.parametrize(
    ("params", "asked"),
    [
        ({"sessionId": "stranger", "toolCall": {"toolCallId": "c"}, "options": []}, False),
        ({"sessionId": "s1", "toolCall": {}, "options": []}, False),
        ({"sessionId": "s1"}, False),
        (
            {
                "sessionId": "s1",
                "toolCall": {"toolCallId": "c", "rawInput": {"path": "file://[x"}},
                "options": [],
            },
            True,
        ),
        ({"sessionId": "s1", "toolCall": {"toolCallId": "c", "rawInput": {"n": 2**80}}, "options": []}, True),
    ],
)
async def test_an_odd_permission_is_answered_with_a_result_and_the_connection_lives(
    tmp_path: Path, params: dict[str, object], asked: bool
) -> None:
    """Never with an error: some agents hang after one. What nobody could be asked about is cancelled."""
    source = f"""
hello(); session(); prompt = prompted()
send(id=1, method="session/request_permission", params={params!r})
{TELL}
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert (await go(session)).stop_reason == "end_turn"
        (heard,) = await told(session)
        assert "error" not in heard
        assert asked or heard["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_whoever_cancels_the_turn_instead_of_answering_is_named(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "ask something"))
        await hand.until_asked()
        hand.answer(hand.asked[0].id, Decision("cancelled", "person", "enough"))
        await asyncio.sleep(0)
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        (answered,) = await answers(session)
        assert (answered["outcome"], answered["by"]) == ("cancelled", "person")


async def test_a_question_carries_the_diff_it_is_about(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        (made.work / "a.txt").write_text("old text")
        session = await made.rehearse()
        await play(session, "ask edit a.txt old => new")
        (asked,) = [json.loads(event.payload) for event in await of_type(session, "permission-asked")]
        assert [(diff["oldText"], diff["newText"]) for diff in asked["diffs"]] == [("old text", "new text")]
        assert (made.work / "a.txt").read_text() == "new text"


async def test_a_permission_that_names_only_a_part_is_shown_whole(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
call = {"sessionUpdate": "tool_call", "toolCallId": "call1", "title": "Run it", "kind": "execute",
        "rawInput": {"command": "make"}}
send(method="session/update", params={"sessionId": "s1", "update": call})
permission(1); answer(1); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (asked,) = [json.loads(event.payload) for event in await of_type(session, "permission-asked")]
        assert (asked["title"], asked["action"]["command"]) == ("Run it", "make")


class Gate(JsonlBackend):
    """Commits an answer only when the test lets it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reached, self.opened = threading.Event(), threading.Event()

    def commit(self, ops: Sequence[Op]) -> None:
        types = [event.type for op in ops if isinstance(op, Append) for event in op.events]
        if "permission-answered" in types:
            self.reached.set()
            self.opened.wait(20)
        super().commit(ops)


async def test_the_answer_is_on_the_disk_before_the_agent_hears_it(tmp_path: Path) -> None:
    source = FULL_OPTIONS + "answer(1); open('heard', 'w').close(); done(prompt); stay()"
    gate = Gate(tmp_path / "log")
    async with rig(tmp_path, backend=gate) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        assert await asyncio.to_thread(gate.reached.wait, 20)
        await _agent_has_nothing_to_read(session)
        assert not (tmp_path / "heard").exists()
        gate.opened.set()
        await prompting
        assert (tmp_path / "heard").exists()


async def _agent_has_nothing_to_read(session: Session) -> None:
    """A round through the loop in which an answer, were there one, would have been written."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert isinstance(session.agent, AcpAgent)
    transport = session.agent.child._stdin._transport
    assert transport is not None
    assert transport.get_write_buffer_size() == 0


async def test_a5_a_call_with_more_places_than_can_be_judged_is_refused_whoever_approves(
    tmp_path: Path,
) -> None:
    source = f"hello(); session(); prompt = prompted(); places = [{{'path': f'/{{n}}'}} for n in range({MAX_PLACES + 1})]\n"
    async with rig(tmp_path, approver=ApproveAll()) as made:
        session = await made.script(
            f"{source}permission(1, title='t', kind='edit', locations=places)\n{TELL}"
        )
        await go(session)
        assert await selected(session) == {"outcome": "cancelled"}
        assert await answers(session) == []
