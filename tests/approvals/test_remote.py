"""Agents on other machines: their paths lead where they were resolved there, and the server's disk is never looked at."""

from __future__ import annotations

import asyncio
import builtins
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.doors import ASKER, YES, Counter, Rig, open_door
from tests.approvals.installation import PERSON, Installation

from legation.approvals.door import MOVED
from legation.approvals.policy.facts import Facts, carried, real_path, resolve_here
from legation.approvals.policy.load import load_text
from legation.approvals.policy.rules import PolicySet
from legation.approvals.request import (
    DoorRequest,
    action_of,
    at_use,
    context_of,
    remote_facts,
    remote_request,
)
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.replay import replay
from legation.approvals.trace.step import new_trace_id
from legation.errors import Forbidden, InvalidParams
from legation.wire.acp.updates import ToolCall
from legation.wire.action import Action, Ask
from legation.wire.principal import Principal
from legation.wire.resolved import ResolvedPaths

RULES = """
name: p
agent: "*"
loop: off
rules:
  - {id: keys, when: {paths: {under: [~/.ssh, /etc]}}, action: deny}
  - {id: built, when: {paths: {under: $WORKSPACE/build}}, action: human_approval}
  - {id: mine, when: {paths: {under: $WORKSPACE}}, action: allow}
  - {id: named, when: {paths: {glob: "/srv/*.txt"}}, action: allow}
  - {id: rest, action: human_approval}
"""
POLICIES = load_text(RULES)
# As the machine of the agent has it: none of these is on this one.
FOLDERS = {
    "/far/w": "/vol/w",
    "/far/home": "/far/home",
    "/far/home/.ssh": "/far/home/.ssh",
    "/etc": "/private/etc",
    "/far/w/build": "/vol/w/build",
}
WHERE = ResolvedPaths(workspace="/far/w", cwd="/far/w", home="/far/home", folders=FOLDERS)


def write(*paths: str) -> Action:
    return Action(agent="claude", tool="Write", kind="edit", params={"path": paths[0]}, paths=paths)


def told(*real: str | None, **changes: Any) -> ResolvedPaths:
    return msgspec.structs.replace(WHERE, paths=real, **changes)


def verdict(path: str, real: str | None, policies: PolicySet = POLICIES, **changes: Any) -> str:
    action = write(path)
    return policies.decide(action, remote_facts(ASKER, action, told(real, **changes))).name


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the disk fails the test."""

    def fail(*args: object, **_: object) -> None:
        pytest.fail(f"looked at the disk: {args}")

    for owner, name in (
        *((os, name) for name in ("open", "stat", "lstat", "readlink", "listdir", "scandir", "access")),
        *((os.path, name) for name in ("realpath", "lexists", "exists")),
        (builtins, "open"),
    ):
        monkeypatch.setattr(owner, name, fail)


# What policies see.


@pytest.mark.usefixtures("no_disk")
def test_rules_decide_by_what_was_carried_and_never_look_at_the_disk() -> None:
    found = {
        (path, real): verdict(path, real)
        for path, real in (
            ("/far/w/a", "/vol/w/a"),
            ("/far/w/build/a", "/vol/w/build/a"),
            ("/far/w/link/key", "/far/home/.ssh/key"),  # a link there, which only that machine can know
            ("/far/w/link", "/private/etc/passwd"),
            ("/etc/passwd", "/private/etc/passwd"),
            ("/srv/a.txt", "/srv/a.txt"),
            ("/srv/a.txt", "/srv/secret"),
            ("/tmp/a", "/tmp/a"),
        )
    }
    assert [*found.values()] == [
        *("p:mine", "p:built", "p:keys", "p:keys", "p:keys", "p:named", "p:rest", "p:rest")
    ]


@pytest.mark.usefixtures("no_disk")
def test_what_was_not_carried_is_unknown_and_fails_closed() -> None:
    """No rule that looks at it allows, and no deny lets it pass; where none denies, a person is asked."""
    asks = load_text(
        "name: p\nrules: [{id: mine, when: {paths: {under: $WORKSPACE}}, action: allow},"
        ' {id: named, when: {paths: {glob: "/**"}}, action: allow}]'
    )
    for policies, expected in ((POLICIES, "deny"), (asks, "deny")):
        assert (
            policies.decide(write("/far/w/a"), remote_facts(ASKER, write("/far/w/a"), None)).action
            == expected
        )
    asked = load_text(
        "name: p\nrules: [{id: mine, when: {paths: {under: $WORKSPACE}}, action: allow}, {id: rest, action: human_approval}]"
    )
    assert verdict("/far/w/a", None, asked) == "p:rest"  # the path
    assert verdict("/far/w/a", "/vol/w/a", asked) == "p:mine"
    assert verdict("/far/w/a", "/vol/w/a", asked, folders={}) == "p:rest"  # the folder
    assert verdict("/far/w/a", "/vol/w/a", asked, workspace=None) == "p:rest"
    # A folder that a deny names, and that nobody told of.
    assert verdict("/far/w/a", "/vol/w/a", folders={"/far/w": "/vol/w"}) == "p:keys"


@pytest.mark.usefixtures("no_disk")
def test_an_argument_is_looked_up_as_it_is_written() -> None:
    policies = load_text(
        "name: p\nrules: [{id: in, when: {params.path: {under: $WORKSPACE}}, action: allow}, {id: out, action: human_approval}]"
    )
    for text, name in (
        ("a", "p:in"),
        ("./a", "p:in"),
        ("/far/w/./a", "p:in"),
        ("b", "p:out"),
        ("x/../a", "p:out"),
    ):
        action = Action(agent="claude", tool="Write", params={"path": text}, paths=("/far/w/a",))
        assert policies.decide(action, remote_facts(ASKER, action, told("/vol/w/a"))).name == name


def test_nobody_lies_a_path_past_a_deny_or_into_an_allow() -> None:
    """What it is named counts beside where it is said to lead."""
    assert verdict("/far/home/.ssh/key", "/vol/w/harmless") == "p:keys"
    assert verdict("/etc/passwd", "/vol/w/harmless") == "p:keys"
    assert verdict("/opt/secret", "/vol/w/harmless") == "p:rest"
    with pytest.raises(InvalidParams, match="a folder other than the root"):
        verdict("/opt/secret", "/opt/secret", workspace="/", folders={**FOLDERS, "/": "/"})


@pytest.mark.parametrize(
    "principal",
    [
        Principal(
            kind="process", id="server", workspace="local", scopes=frozenset({"operate", "call"}), level=2
        ),
        Principal(kind="process", id="host", workspace="local", scopes=frozenset(), level=0),
        Principal(kind="user", id="usr_1", workspace="local", scopes=frozenset({"operate"}), level=2),
        Principal(kind="agent", id="supervisor", workspace="local", scopes=frozenset({"approve"}), level=1),
        Principal(
            kind="token", id="t", workspace="local", scopes=frozenset({"call"}), level=0, agent="codex"
        ),
    ],
)
def test_only_a_token_of_the_agent_or_of_an_operator_carries(principal: Principal) -> None:
    """Whoever else asks acts on this machine, and is judged by its disk; a token of an agent speaks for no other one."""
    for resolved in (told("/vol/w/a"), None):
        with pytest.raises(Forbidden, match=r"^cannot "):
            remote_facts(principal, write("/far/w/a"), resolved)


def test_an_ask_is_checked_before_anything_is_asked() -> None:
    ask = Ask(
        id="apr_1",
        session_id="run",
        action=write("/far/w/a"),
        options=(),
        title="",
        asked_at=1,
        resolved=told(),
    )
    with pytest.raises(InvalidParams, match="as many as the call has paths"):
        remote_request(ASKER, ask)
    request = remote_request(ASKER, msgspec.structs.replace(ask, resolved=told("/vol/w/a")))
    assert (request.facts.places(ask.action.paths), request.in_session) == (("/vol/w/a",), False)


def test_what_the_origin_finds_on_its_disk_decides_there_as_it_would_here(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home / ".ssh", work / "src", work / "build"):
        folder.mkdir(parents=True)
    (tmp_path / "linked").symlink_to(work)
    (work / "out").symlink_to(home / ".ssh")
    assert POLICIES.folders == ("$WORKSPACE", "$WORKSPACE/build", "/etc", "~/.ssh")
    here = Facts(str(tmp_path / "linked"), str(tmp_path / "linked"), str(home))
    for path in (
        "src/a",
        "out/key",
        "build/x",
        "../home/.ssh/key",
        "/etc/passwd",
        "/tmp/x",
        "src/../out/key",
        "~/a",
    ):
        call = ToolCall(tool_call_id="", title="", name="Write", kind="edit", raw_input={"path": path})
        action = Action.from_tool_call("claude", call, cwd=str(here.cwd), home=here.home)
        resolved = resolve_here(action, here, POLICIES.folders)
        resolved.check(action.paths)
        assert POLICIES.decide(action, carried(action, resolved)).name == POLICIES.decide(action, here).name


# Through the door.


def test_facts_of_another_machine_cannot_be_made_to_look_at_this_disk() -> None:
    with pytest.raises(ValueError, match="INV-F1"):
        replace(carried(write("/far/w/a"), told("/vol/w/a")), resolve=real_path)


def asked_for(path: str, real: str | None, **changes: Any) -> DoorRequest:
    action = write(path)
    return DoorRequest(
        principal=ASKER, action=action, facts=remote_facts(ASKER, action, told(real, **changes))
    )


async def through(rig: Rig, request: DoorRequest) -> Any:
    counter = Counter()
    running = asyncio.create_task(rig.door.run(request, counter))
    [approval] = await rig.pending()
    await rig.inbox.resolve(PERSON, approval.id, YES)
    ruling, _ = await running
    return ruling, len(counter.calls), await rig.steps(request.trace_id)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("again", "changes", "message"),
    [
        ("/vol/w/other", {}, MOVED),  # a link was put there meanwhile
        ("/far/home/.ssh/key", {}, None),  # to what the rules deny: in their words
        (None, {}, None),  # it cannot be told any more, and may be that
        ("/vol/w/build/a", {"workspace": "/far"}, None),
        ("/vol/w/build/a", {"folders": {**FOLDERS, "/far/w": "/vol/v"}}, None),
    ],
)
async def test_another_resolution_when_it_is_used_is_a_deny(
    installation: Installation,
    tmp_path: Path,
    again: str | None,
    changes: dict[str, Any],
    message: str | None,
) -> None:
    async with open_door(installation, tmp_path, RULES) as rig:
        asked = asked_for("/far/w/build/a", "/vol/w/build/a")
        ruling, acted, steps = await through(rig, at_use(asked, told(again, **changes)))
        assert (ruling.outcome, acted, steps[-1]) == ("denied", 0, "cancelled/paths-changed")
        assert message in (None, ruling.message)


@pytest.mark.heavy
async def test_the_same_resolution_passes_and_none_does_not(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, RULES) as rig:
        asked = asked_for("/far/w/build/a", "/vol/w/build/a")
        ruling, acted, _ = await through(rig, at_use(asked, told("/vol/w/build/a")))
        assert (ruling.outcome, acted) == ("approved", 1)
        ruling, acted, steps = await through(rig, asked_for("/far/w/build/a", "/vol/w/build/a"))
        assert (ruling.outcome, acted, steps[-1]) == ("denied", 0, "cancelled/paths-changed")


@pytest.mark.heavy
async def test_who_carries_nothing_is_asked_about_and_need_not_carry_when_it_is_used(
    installation: Installation, tmp_path: Path
) -> None:
    policy = RULES.replace("- {id: keys, when: {paths: {under: [~/.ssh, /etc]}}, action: deny}", "")
    async with open_door(installation, tmp_path, policy) as rig:
        action = write("/far/w/a")
        asked = DoorRequest(principal=ASKER, action=action, facts=remote_facts(ASKER, action, None))
        ruling, acted, _ = await through(rig, asked)
        assert (ruling.outcome, acted) == ("approved", 1)
        asked = msgspec.structs.replace(asked, trace_id=new_trace_id())
        ruling, acted, steps = await through(rig, at_use(asked, told("/vol/w/a")))
        assert (ruling.outcome, acted, steps[-1]) == ("denied", 0, "cancelled/paths-changed")


@pytest.mark.heavy
async def test_the_trace_keeps_it_and_a_replay_decides_by_it(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(installation, tmp_path, RULES) as rig:
        for path, real in (("/far/w/a", "/vol/w/a"), ("/far/w/link", "/far/home/.ssh/key")):
            await rig.door.run(asked_for(path, real), Counter())

    def fail(path: str) -> str | None:
        pytest.fail(f"looked at {path}")

    monkeypatch.setattr("legation.approvals.policy.facts.real_path", fail)
    database, sealer = installation.database, installation.sealer
    same = await replay(database, sealer, "local", POLICIES, TraceFilter(), 10)
    assert (same.calls, same.differing) == (2, 0)
    other = load_text(RULES.replace("/etc]", "/vol/w]").replace("[~/.ssh, ", "["))
    found = await replay(database, sealer, "local", other, TraceFilter(), 10)
    # The second led to the keys, and not into the workspace; where /vol/w leads there nobody was asked: unknown.
    assert found.counts == {"allow -> deny": 1}


def test_a_call_on_record_is_decided_again_by_what_was_carried() -> None:
    action = write("/far/w/a")
    facts = remote_facts(ASKER, action, told("/vol/w/a"))
    restored, again = action_of("claude", "Write", "edit", action.params, context_of(action, facts))
    assert (restored.paths, again.now().places(action.paths)) == (action.paths, ("/vol/w/a",))
    assert again.resolved == facts.resolved
    # With other arguments, whose path nobody resolved: unknown, and not the place of the first one.
    other = write("/far/w/b")
    kept = context_of(other, again)
    _, edited = action_of("claude", "Write", "edit", other.params, kept)
    assert edited.places(other.paths) == (None,)
    local = Facts("/w", "/w")
    assert replace(local, resolve=lambda path: path).now() == local  # one of this machine looks again
