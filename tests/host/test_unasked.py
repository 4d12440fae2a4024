"""What an agent does is asked about first, whoever does it for it; what was done unasked is told, and ends the turn."""

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.modes_agent import moody
from tests.approvals.doors import NO, YES
from tests.approvals.installation import PERSON, SUPERVISOR
from tests.host.at_a_door import AtADoor, at_a_door
from tests.host.rig import Hand, events, go, of_type, rig, until_type

from legation.host.requests.handlers import ApproveAll, DenyAll, Reverse, Unasked
from legation.host.requests.services import DefaultTerminals
from legation.host.session import Session
from legation.host.turn import LONGEST_SPLIT, Decided, ToolCalls, command_line
from legation.proc import ProcessLauncher, child_environment
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.action import Action, Ask, Decision

pytestmark = pytest.mark.heavy  # an agent's process each

# Edits are asked about; `secret` is closed; the folder may be read.
CAREFUL = """
name: p
loop: off
rules:
  - {id: secret, kind: [read, edit], action: deny, when: {paths: {glob: "**/secret"}}, message: It is closed.}
  - {id: reads, kind: read, action: allow, when: {paths: {under: $WORKSPACE}}}
  - {id: edits, kind: edit, action: supervisor, when: {paths: {under: $WORKSPACE}}}
  - {id: runs, kind: execute, action: allow, when: {command: "echo free"}}
  - {id: rest, action: deny}
"""
HEAD = r"""
hello(); cwd = None
while True:
    message = read()
    if message.get("method") == "session/new":
        cwd = message["params"]["cwd"]
        send(id=message["id"], result={"sessionId": "s1"})
        break

def path(name):
    return os.path.join(cwd, name)

def say(what, **members):
    send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": what, **members}})

def call(number, kind, status, name=None, **more):
    about = {"locations": [{"path": path(name)}]} if name else {}
    known = {"kind": kind} if kind else {}
    say("tool_call", toolCallId=f"call{number}", title=f"Call {number}", status=status, **known, **about, **more)

def ended(number, status="completed"):
    say("tool_call_update", toolCallId=f"call{number}", status=status)

def fs_write(number, name, text="new"):
    send(id=number, method="fs/write_text_file", params={"sessionId": "s1", "path": path(name), "content": text})
    return answer(number)

def fs_read(number, name):
    send(id=number, method="fs/read_text_file", params={"sessionId": "s1", "path": path(name)})
    return answer(number)

def asked(number, kind, name):
    permission(number, kind=kind, locations=[{"path": path(name)}], title=f"Call {number}")
    return answer(number)

def runs(number, command):
    permission(number, kind="execute", rawInput={"command": command}, title=command)
    return answer(number)

def tell(*found):
    update(json.dumps(found))

prompt = prompted()
"""
END = "\ndone(prompt); stay()"


async def told(session: Session, type_: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in await of_type(session, type_)]


async def heard(session: Session) -> Any:
    """What the agent says that it was answered."""
    [chunk] = await told(session, "agent-message-chunk")
    return json.loads(chunk["content"]["text"])


async def resolve(at: AtADoor, answer: Any = YES) -> None:
    [approval] = await at.door.pending()
    await at.door.inbox.resolve(SUPERVISOR, approval.id, answer)


# What Legation does for an agent.


async def test_a_reverse_write_is_decided_by_policy_and_traced(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + 'tell(fs_write(1, "a.txt"))' + END)
        prompting = asyncio.create_task(go(session))
        await at.door.pending()
        assert not (at.made.work / "a.txt").exists()
        await resolve(at)
        assert (await prompting).error is None
        assert (at.made.work / "a.txt").read_text() == "new"
        [asked] = await told(session, "permission-asked")
        assert asked["action"]["paths"] == [str(at.made.work / "a.txt")]
        [entry] = await at.door.installation.entries(session=session.id)
        assert (entry.tool, entry.policy_rule, entry.approval_status) == (
            "write_text_file",
            "p:edits",
            "approved",
        )


@pytest.mark.parametrize("how", ["write", "read"])
async def test_what_a_rule_closes_is_closed_to_the_agents_client_too_and_the_agent_hears_why(
    how: str, tmp_path: Path
) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        (at.made.work / "secret").write_text("keys")
        session = await at.made.script(HEAD + f'tell(fs_{how}(1, "secret"))' + END)
        await go(session)
        [answer] = await heard(session)
        assert answer["error"]["message"] == (
            f"cannot {how} {at.made.work / 'secret'}: denied by p:secret: It is closed."
        )
        assert (at.made.work / "secret").read_text() == "keys"
        [entry] = await at.door.installation.entries(session=session.id)
        assert (entry.policy, entry.policy_rule) == ("deny", "p:secret")


async def test_a_persons_no_to_a_write_is_the_agents_error_and_his_reasons_stay_his(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + 'tell(fs_write(1, "a.txt"))' + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at, NO)
        await prompting
        [answer] = await heard(session)
        assert answer["error"]["message"].startswith(f"cannot write {at.made.work / 'a.txt'}: denied")
        assert not (at.made.work / "a.txt").exists()


async def test_a_write_is_not_asked_again_where_its_tool_call_was_just_allowed_to(tmp_path: Path) -> None:
    script = """
call(1, "edit", "pending", "a.txt"); asked(1, "edit", "a.txt")
fs_write(2, "a.txt", "one"); fs_write(3, "a.txt", "two"); ended(1); tell("done")
"""
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at)
        assert (await prompting).stop_reason == "end_turn"
        assert (at.made.work / "a.txt").read_text() == "two"
        assert len(await told(session, "permission-asked")) == 1
        assert await told(session, "unasked-effect") == []


@pytest.mark.parametrize(
    "then",
    [
        'fs_write(2, "b.txt")',  # another path
        'ended(1); fs_write(2, "a.txt")',  # the call is over
        'os.remove(path("a.txt")); os.symlink(path("b.txt"), path("a.txt")); fs_write(2, "a.txt")',
    ],
    ids=["another path", "another call", "a link put there"],
)
async def test_a_permission_covers_its_own_call_and_place_and_nothing_later(
    then: str, tmp_path: Path
) -> None:
    script = f'call(1, "edit", "pending", "a.txt"); asked(1, "edit", "a.txt")\n{then}\ntell("done")'
    async with at_a_door(tmp_path, CAREFUL) as at:
        (at.made.work / "a.txt").write_text("old")
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at)
        await at.door.until(lambda: told(session, "permission-asked"), lambda found: len(found) == 2)
        await resolve(at, NO)
        await prompting
        assert not (at.made.work / "b.txt").exists()


async def test_a_permission_to_read_is_none_to_write(tmp_path: Path) -> None:
    script = 'call(1, "read", "pending", "a.txt"); asked(1, "read", "a.txt")\ntell(fs_write(2, "a.txt"))'
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at, NO)
        await prompting
        [answer] = await heard(session)
        assert "error" in answer


async def test_a_permission_of_the_turn_before_covers_nothing(tmp_path: Path) -> None:
    script = 'asked(1, "edit", "a.txt"); done(prompt); prompt = prompted(); tell(fs_write(2, "a.txt"))'
    hand = Hand()
    async with rig(tmp_path, approver=hand) as made:
        session = await made.script(HEAD + script + END)
        first = asyncio.create_task(go(session))
        await hand.until_asked()
        hand.answer(hand.asked[0].id, Decision("approved", "test", "yes"))
        await first
        second = asyncio.create_task(go(session))
        await hand.until_asked(2)
        hand.answer(hand.asked[1].id, Decision("denied", "test", "no"))
        await second
        assert not (made.work / "a.txt").exists()


async def test_a_host_without_rules_asks_its_approver_about_writes_and_nobody_about_reads(
    tmp_path: Path,
) -> None:
    hand = Hand()
    async with rig(tmp_path, approver=hand) as made:
        (made.work / "a.txt").write_text("old")
        session = await made.script(HEAD + 'tell(fs_read(1, "a.txt"), fs_write(2, "a.txt"))' + END)
        prompting = asyncio.create_task(go(session))
        await hand.until_asked()
        assert [each.action.tool for each in hand.asked] == ["write_text_file"]
        hand.answer(hand.asked[0].id, Decision("approved", "test", "yes"))
        await prompting
        read, write = await heard(session)
        assert (read["result"], write["result"]) == ({"content": "old"}, {})


async def test_a_reverse_write_that_the_agent_takes_back_is_not_done(tmp_path: Path) -> None:
    script = """
send(id=1, method="fs/write_text_file", params={"sessionId": "s1", "path": path("a.txt"), "content": "x"})
send(method="$/cancel_request", params={"requestId": 1}); tell(answer(1))
"""
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        await go(session)
        [answered] = await told(session, "permission-answered")
        assert answered["outcome"] == "superseded"
        assert not (at.made.work / "a.txt").exists()


# What an agent has done.

UNASKED = 'open(path("a.txt"), "w").close(); call(1, "edit", "completed", "a.txt")'


async def test_an_effect_that_nobody_was_asked_about_is_told_traced_and_ends_the_turn(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + UNASKED + END)
        result = await go(session)
        assert result.stop_reason == "cancelled"
        assert result.error is not None
        assert "p:edits" in result.error.message
        [effect] = await told(session, "unasked-effect")
        assert (effect["policy"], effect["rule"], effect["endsTurn"]) == ("supervisor", "p:edits", True)
        assert effect["action"]["paths"] == [str(at.made.work / "a.txt")]
        types = [event.type for event in await events(session)]
        assert types.index("unasked-effect") < types.index("prompt-finished")
        [entry] = await at.door.installation.entries(session=session.id)
        assert (entry.policy, entry.policy_rule, entry.reason) == ("supervisor", "p:edits", "unasked")
        assert entry.approval_status is None
        assert (await at.door.installation.verify()).ok


async def test_a_turn_is_ended_before_its_agent_is_done(tmp_path: Path) -> None:
    script = (
        UNASKED
        + """
while read().get("method") != "session/cancel": pass
done(prompt, "cancelled"); stay()
"""
    )
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script)
        result = await go(session)
        assert (result.stop_reason, result.error is None) == ("cancelled", False)


async def test_an_agent_that_answers_the_end_of_its_turn_with_an_error_does_not_hide_why_it_was_ended(
    tmp_path: Path,
) -> None:
    wait = """
while read().get("method") != "session/cancel":
    pass
send(id=prompt, error={"code": -32603, "message": "Internal error"}); stay()
"""
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + UNASKED + wait)
        error = (await go(session)).error
        assert error is not None
        assert error.message.startswith("cannot go on: the agent acted")


async def test_where_the_policy_says_warn_the_turn_goes_on(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL.replace("loop: off", "loop: off\nunasked: warn")) as at:
        session = await at.made.script(HEAD + UNASKED + END)
        assert (await go(session)).stop_reason == "end_turn"
        [effect] = await told(session, "unasked-effect")
        assert effect.get("endsTurn", False) is False
        [entry] = await at.door.installation.entries(session=session.id)
        assert entry.reason == "unasked"


@pytest.mark.parametrize(
    "script",
    [
        'call(1, "read", "completed", "secret")',
        'call(1, "search", "completed"); call(2, "think", "completed")',
        'call(1, "edit", "failed", "a.txt")',
        'call(1, "edit", "in_progress", "a.txt")',
        'call(1, "execute", "completed", rawInput={"command": "echo free"})',  # a rule allows it
        'ended(9, "failed")',
    ],
)
async def test_what_has_no_effect_or_would_have_been_allowed_is_no_alarm(script: str, tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        assert (await go(session)).stop_reason == "end_turn"
        assert await told(session, "unasked-effect") == []


@pytest.mark.parametrize(
    "script",
    [
        'call(1, None, "completed")',
        "ended(1)",
        'call(1, "other", "completed")',
        'call(1, "execute", "completed", rawInput={"command": "rm -rf x"})',
        'call(1, "fetch", "completed", rawInput={"url": "https://example.com"})',
        'call(1, "read", "pending", "a.txt"); asked(1, "read", "a.txt"); call(2, "edit", "completed", "a.txt")',
        'asked(1, "read", "a.txt"); call(1, "edit", "completed", "a.txt")',
        'asked(1, "read", "a.txt"); call(1, "execute", "completed", rawInput={"command": "rm -rf x"})',
        'call(1, "edit", "pending", "secret"); asked(1, "edit", "secret"); ended(1)',
        'asked(1, "edit", "secret"); call(2, "edit", "completed", "secret")',
        'call(1, "read", "completed", "a.txt"); call(1, "edit", "completed", "a.txt")',
        'call(1, "read", "completed", content=[{"type": "diff", "path": path("a.txt"), "newText": "new"}])',
        'runs(1, "echo free"); call(1, "execute", "completed", rawInput={"command": "echo free", "cmd": "rm -rf x"})',
    ],
    ids=[
        "of no kind",
        "never announced",
        "other",
        "execute",
        "fetch",
        "another call was asked about reading",
        "it was asked about reading",
        "it was asked about reading, and ran",
        "it was refused",
        "another call was refused",
        "an id that was used before",
        "a read that shows a change",
        "a second command",
    ],
)
async def test_a_call_of_any_other_kind_or_of_none_counts(script: str, tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        assert (await go(session)).error is not None
        assert len(await told(session, "unasked-effect")) == 1


@pytest.mark.parametrize(
    "script",
    [
        'asked(1, "edit", "a.txt"); call(1, "edit", "completed", "a.txt"); ended(1)',
        'call(1, "edit", "pending", "a.txt"); fs_write(2, "a.txt"); ended(1)',
        'fs_write(2, "a.txt"); call(1, "edit", "completed", "a.txt")',
    ],
    ids=["a permission", "a reverse write while it ran", "a reverse write of a call told at its end"],
)
async def test_what_was_decided_while_it_ran_counts_as_asked(script: str, tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at)
        assert (await prompting).stop_reason == "end_turn"
        assert await told(session, "unasked-effect") == []


async def test_one_decision_stands_for_one_call(tmp_path: Path) -> None:
    script = (
        'fs_write(2, "a.txt"); call(1, "edit", "completed", "a.txt"); call(3, "edit", "completed", "a.txt")'
    )
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        await resolve(at)
        await prompting
        assert [each["toolCallId"] for each in await told(session, "unasked-effect")] == ["call3"]


async def test_a_call_of_the_turn_before_that_ends_in_this_one_was_asked_about(tmp_path: Path) -> None:
    script = """
call(1, "edit", "in_progress", "a.txt"); asked(1, "edit", "a.txt"); done(prompt); prompt = prompted(); ended(1)
"""
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(HEAD + script + END)
        first = asyncio.create_task(go(session))
        await resolve(at)
        await first
        assert (await go(session)).stop_reason == "end_turn"
        assert await told(session, "unasked-effect") == []


async def test_an_agent_without_an_asking_mode_is_stopped_at_its_first_effect(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, CAREFUL) as at:
        session = await at.made.script(moody(offers=["auto", "yolo"]))
        assert (await go(session)).error is not None
        await until_type(session, "unasked-effect")


async def test_a_host_without_rules_tells_and_one_that_allows_all_is_not_alarmed(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.script(HEAD + UNASKED + END)
        assert (await go(session)).stop_reason == "end_turn"
        [effect] = await told(session, "unasked-effect")
        assert "policy" not in effect
    async with rig(tmp_path, approver=ApproveAll()) as made:
        session = await made.script(HEAD + UNASKED + END)
        await go(session)
        assert await told(session, "unasked-effect") == []


@pytest.mark.parametrize(("env", "asked"), [([], 0), ([{"name": "LD_PRELOAD", "value": "evil.so"}], 1)])
async def test_an_environment_makes_another_command_of_one_that_a_rule_allows(
    env: list[dict[str, str]], asked: int, tmp_path: Path
) -> None:
    script = f"""
send(id=1, method="terminal/create", params={{"sessionId": "s1", "command": "echo", "args": ["free"], "cwd": cwd, "env": {env!r}}})
tell(answer(1))
"""
    terminals = DefaultTerminals(
        ProcessLauncher(),
        child_environment({}, home=tmp_path, tmp=tmp_path),
        forbidden=ForbiddenPlaces(),
    )
    async with at_a_door(tmp_path, CAREFUL, terminal=terminals) as at:
        session = await at.made.script(HEAD + script + END)
        prompting = asyncio.create_task(go(session))
        if asked:
            [approval] = await at.door.pending()
            await at.door.inbox.resolve(PERSON, approval.id, NO)
        await prompting
        [answer] = await heard(session)
        assert ("error" in answer) is bool(asked)
    await terminals.dispose()


@pytest.mark.parametrize(
    ("request_", "covered"),
    [
        ({"command": "ls"}, True),
        ({"command": "/bin/bash", "args": ["-c", "ls"]}, True),
        ({"command": "ls", "cwd": "/srv"}, True),
        ({"command": "/srv/bash", "args": ["-c", "ls"]}, False),
        ({"command": "ls", "cwd": "/srv/inner"}, False),
        ({"command": "rm", "args": ["-rf", "x"]}, False),
    ],
    ids=["itself", "by a shell", "in its folder", "by a program named like a shell", "elsewhere", "another"],
)
def test_a_terminal_is_covered_by_the_permission_for_that_command_in_that_folder(
    request_: dict[str, Any], covered: bool
) -> None:
    calls = ToolCalls()
    decided = Decided(calls)
    asked = Action(agent="a", tool="shell", kind="execute", params={"command": "ls"}, command="ls")
    ask = Ask(
        id="p1", session_id="s", action=asked, options=(), title="ls", asked_at=0, tool_call_id="c1", turn="t"
    )
    decided.begin(ask)
    decided.settle(ask, Decision(outcome="approved", by="policy", reason=""))
    reverse = Reverse(None, None, None)
    service = reverse.service("terminal/create", json.dumps({"sessionId": "s", **request_}).encode())
    assert service is not None
    action = Action(
        agent="a", tool=service.tool, kind="execute", params=service.params, command=service.command
    )
    assert decided.covers(action, None, "t", "/srv") is covered


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("ls  -l ", "ls  -l"),
        ("bash -c 'ls  -l '", "ls  -l"),
        ("/bin/sh -lc \"ls \\\"a\\\"\"", 'ls "a"'),
        ("/srv/sh -c ls", "/srv/sh -c ls"),
        ("sh -c ls x", "sh -c ls x"),
        ("sh -c 'ls", "sh -c 'ls"),
        ("sh -x -c ls", "sh -x -c ls"),
        ("sh -c '" + "ls; " * 5000 + "'", ("ls; " * 5000).strip()),
        ("sh -c '" + "ls; " * 5000 + "' 'x'", "sh -c '" + "ls; " * 5000 + "' 'x'"),
        ("sh -c " + "'a'\"b\"" * 5000, "sh -c " + "'a'\"b\"" * 5000),
        (None, None),
    ],
)  # fmt: skip
def test_the_line_of_a_command_is_what_a_shell_is_given(command: object, line: str | None) -> None:
    assert command_line(command) == line


def test_a_long_command_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shlex` takes the square of its length, in the loop."""
    split: list[int] = []
    shlex_split = shlex.split

    def watched(text: str) -> list[str]:
        split.append(len(text))
        return shlex_split(text)

    monkeypatch.setattr(shlex, "split", watched)
    for command in ("echo 'a b' " * 11_000, "sh -c '" + "echo a; " * 15_000 + "'", "bash -c 'ls'"):
        command_line(command)
    assert split
    assert max(split) <= LONGEST_SPLIT


class SlowRules(DenyAll):
    """Says what the rules would have said once its gate is open."""

    def __init__(self) -> None:
        self.at_work = 0
        self.gate = asyncio.Event()

    async def unasked(self, ask: Ask) -> Unasked:
        self.at_work += 1
        await self.gate.wait()
        return Unasked("allow", "p:any", ask.title)


async def until_no_more(count: Callable[[], int]) -> int:
    """How many there are when for a second there were no more; on a slow machine it may be fewer than there would be."""
    last, quiet = 0, 0
    while quiet < 50:
        await asyncio.sleep(0.02)
        quiet = quiet + 1 if last and count() == last else 0
        last = count()
    return last


async def test_an_agent_is_read_no_further_while_much_of_what_it_did_is_judged(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(rules := SlowRules())) as made:
        session = await made.script(
            HEAD + 'for n in range(5000): call(n, "execute", "completed")\ntell("all")' + END
        )
        prompting = asyncio.create_task(go(session))
        assert await until_no_more(lambda: rules.at_work) < 1000
        rules.gate.set()
        await prompting
        assert (rules.at_work, await heard(session)) == (5000, ["all"])


async def test_an_agent_is_read_no_further_while_many_titles_are_noted(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.script(
            HEAD + 'for n in range(5000): say("session_info_update", title=str(n))\ntell("all")' + END
        )
        noted: list[bytes] = []
        gate, note = asyncio.Event(), session.stream.set_meta

        def noting(meta: bytes, *, replaces: bytes | None = None) -> Awaitable[None]:
            noted.append(meta)
            return asyncio.gather(note(meta, replaces=replaces), gate.wait())  # type: ignore[return-value]

        session.stream.set_meta = noting  # type: ignore[method-assign]
        prompting = asyncio.create_task(go(session))
        assert await until_no_more(lambda: len(noted)) < 1000
        gate.set()
        await prompting
        assert (session.meta.title, await heard(session)) == ("4999", ["all"])
