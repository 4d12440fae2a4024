"""Evidence: where paths lead, what would change, and what each level said."""

from pathlib import Path
from typing import Any

import pytest
from tests.approvals.installation import MINUTE, NOW, PERSON, SUPERVISOR, Installation, write_file

from legation.approvals import listing
from legation.approvals.approval import ApprovalAnswer
from legation.approvals.policy.facts import Facts, as_named, carried
from legation.approvals.policy.load import load_text
from legation.approvals.sweep import door_principal
from legation.approvals.trace.evidence import (
    MOST_DIFF,
    Evidence,
    diffs_of,
    evidence_of,
    looks_of,
    parts_of,
    read_evidence,
)
from legation.approvals.trace.step import MAX_CONTENT
from legation.errors import Conflict
from legation.wire import jsontext
from legation.wire.acp.updates import Diff
from legation.wire.action import Action
from legation.wire.api.approvals import ApprovalDetail, ApprovalDiff
from legation.wire.resolved import ResolvedPaths


def edit(*paths: str) -> Action:
    return Action(agent="claude", tool="Edit", kind="edit", params={}, paths=paths)


def test_a_path_is_inside_or_outside_and_through_a_link_or_not(tmp_path: Path) -> None:
    real, out = tmp_path / "real", tmp_path / "out"
    (real / "src").mkdir(parents=True)
    out.mkdir()
    (tmp_path / "work").symlink_to(real)  # the way to the workspace has a link: that is the owner's matter
    (real / "linked").symlink_to(out)
    (real / "own").symlink_to("src")
    work = tmp_path / "work"
    facts = Facts(str(work), str(work), str(tmp_path))
    named = [work / "src/a.py", work / "linked/b", work / "own/c", out / "d", work / "../out/e"]
    found = evidence_of(edit(*map(str, named), "~other/f"), facts).paths
    assert [(each.inside, each.link) for each in found] == [
        (True, False), (False, True), (True, True), (False, False), (False, False), (None, None)
    ]  # fmt: skip
    assert [each.real for each in found][:4] == [
        str(real / "src/a.py"), str(out / "b"), str(real / "src/c"), str(out / "d")
    ]  # fmt: skip


def test_paths_of_an_agent_elsewhere_are_those_that_it_resolved(tmp_path: Path) -> None:
    """Nothing is looked up here, where the same names mean something else."""
    (tmp_path / "a").symlink_to("/etc/passwd")
    here, unknown = str(tmp_path / "a"), str(tmp_path / "b")
    told = ResolvedPaths(
        workspace=str(tmp_path), cwd=str(tmp_path), paths=(here, None), folders={str(tmp_path): str(tmp_path)}
    )
    action = edit(here, unknown)
    found = evidence_of(action, carried(action, told)).paths
    assert [(each.real, each.inside, each.link) for each in found] == [
        (here, True, False), (None, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "cut"), [("x", False), ("x" * (MOST_DIFF + 1), True), ("\x01" * (MOST_DIFF - 1), True)]
)
def test_a_diff_that_is_too_long_is_kept_by_name(text: str, cut: bool) -> None:
    kept = evidence_of(edit("/w/a"), Facts(), [Diff(path="/w/a", new_text=text, old_text="o")])
    (diff,) = read_evidence(kept.contents).diffs
    assert (diff.cut, diff.new_text is None, diff.old_text is None) == (cut, cut, cut)
    assert len(jsontext.write(kept.contents)) < MAX_CONTENT


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"path": "/w/a", "content": "new"}, [(None, "new")]),
        ({"file_path": "/w/a", "old_string": "old", "new_string": "new"}, [("old", "new")]),
        ({"path": "/w/a", "edits": [{"oldText": "1", "newText": "2"}, {"oldText": "3"}]}, [("1", "2")]),
        ({"path": "/w/a", "content": {"no": "text"}}, []),
        ({"path": "/w/a", "content": "half \ud800"}, [(None, "half ?")]),
    ],
)
def test_a_diff_is_made_of_the_arguments_where_the_agent_told_none(
    params: dict[str, Any], found: list[tuple[str | None, str]]
) -> None:
    made = diffs_of(Evidence(), "edit", ["/w/a"], params)
    assert [(each.old_text, each.new_text) for each in made] == found
    assert all((each.path, each.source) == ("/w/a", "arguments") for each in made)
    assert diffs_of(Evidence(), "read", ["/w/a"], params) == []
    told = ApprovalDiff(path="/w/b", new_text="x", source="agent")
    assert diffs_of(Evidence(diffs=(told,)), "edit", ["/w/a"], params) == [told]


async def detail(installation: Installation, approval_id: str, now: int) -> ApprovalDetail:
    return await listing.detail(installation.database, installation.sealer, "local", approval_id, now)


async def test_each_level_says_what_it_said(installation: Installation) -> None:
    asked = await installation.ask(why="edits: ask the supervisor")
    found = (await detail(installation, asked.id, NOW + 4_000)).asked
    assert found is not None
    assert (found.policy.rule, found.policy.reason) == ("claude:rule-2", "edits: ask the supervisor")
    assert (found.supervisor.state, found.supervisor.waited_ms) == ("waiting", 4_000)
    assert (found.person.state, found.person.since) == ("not-yet", None)

    await installation.do(installation.approvals.claim, SUPERVISOR, asked.id, MINUTE, NOW + 1)
    found = (await detail(installation, asked.id, NOW + 2)).asked
    assert found is not None
    assert (found.supervisor.state, found.supervisor.by) == ("looking", "agent:supervisor")

    await installation.do(
        installation.approvals.escalate, SUPERVISOR, asked.id, "the path is new", NOW + 9_000
    )
    found = (await detail(installation, asked.id, NOW + 10_000)).asked
    assert found is not None
    said = found.supervisor
    assert (said.state, said.by, said.reasoning, said.waited_ms) == (
        "escalated", "agent:supervisor", "the path is new", 9_000
    )  # fmt: skip
    assert found.person.state == "waiting"
    assert found.person.since is not None


async def test_that_nobody_was_attached_is_told_apart_from_that_nobody_decided(
    installation: Installation,
) -> None:
    for reason, state in (("no-supervisor", "absent"), ("undecided", "undecided")):
        asked = await installation.ask()
        work, door = installation.approvals.escalate, door_principal("local")
        await installation.do(work, door, asked.id, None, NOW + 30_000, reason=reason)  # type: ignore[arg-type]
        found = (await detail(installation, asked.id, NOW + 31_000)).asked
        assert found is not None
        assert (found.supervisor.state, found.supervisor.waited_ms) == (state, 30_000)
    straight = await installation.ask(verdict="human_approval", reviewers=("finance",))
    found = (await detail(installation, straight.id, NOW)).asked
    assert found is not None
    assert (found.supervisor.state, found.person.reviewers) == ("not-asked", ["finance"])


async def test_who_decided_is_in_the_levels(installation: Installation) -> None:
    ways = ((SUPERVISOR, "decided", "over"), (PERSON, "passed-over", "decided"))
    for by, supervisor, person in ways:
        asked = await installation.ask()
        await installation.answer(asked, ApprovalAnswer(approve=True, confidence=0.9, reasoning="fine"), by)
        found = (await detail(installation, asked.id, NOW + 5)).asked
        assert found is not None
        assert (found.supervisor.state, found.person.state) == (supervisor, person)
        assert found.supervisor.confidence == (0.9 if by is SUPERVISOR else None)
        assert found.supervisor.reasoning == ("fine" if by is SUPERVISOR else None)


async def test_another_policys_words_are_not_taken_for_this_ones(installation: Installation) -> None:
    action = write_file()
    asked = await installation.ask(action, why="of v1")
    await installation.do(
        installation.approvals.rebind, asked, action, "supervisor", "p:other", "v2", (), "of v2", NOW + 1
    )
    found = await detail(installation, asked.id, NOW + 2)
    assert found.asked is not None
    assert (found.asked.policy.rule, found.asked.policy.reason) == ("p:other", "of v2")
    assert found.policy_version == "v2"
    assert found.digest == action.digest("v2") != asked.action_digest


async def test_an_answer_to_another_action_than_was_looked_at_changes_nothing(
    installation: Installation,
) -> None:
    action = write_file()
    asked = await installation.ask(action)
    await installation.do(
        installation.approvals.rebind, asked, action, "supervisor", "p:other", "v2", (), "", NOW + 1
    )
    for approve in (True, False):
        with pytest.raises(Conflict, match="looked at") as refused:
            await installation.answer(asked, ApprovalAnswer(approve=approve, digest=asked.action_digest))
        now = await installation.get(asked)
        assert refused.value.data == {"reason": "digest", "digest": now.action_digest}
        assert (now.status, now.resolver) == ("pending", None)
    answered = await installation.answer(asked, ApprovalAnswer(approve=True, digest=now.action_digest))
    assert answered.status == "approved"


async def test_what_was_said_is_sealed_and_verifies(installation: Installation) -> None:
    secret = "canary-evidence-51c2"
    kept = evidence_of(edit(f"/w/{secret}"), Facts(), [Diff(path="/w/a", new_text=secret)])
    asked = await installation.ask(evidence=kept.contents, why=f"because of {secret}")
    for table in ("approval", "trace_step", "trace_content"):
        for row in await installation.sql(f"select * from {table}"):
            said = [row[name] for name in row.keys()]  # noqa: SIM118 - no mapping
            assert secret not in repr(said)
    shown = await detail(installation, asked.id, NOW)
    assert shown.diffs[0].new_text == secret
    assert (await installation.verify()).ok


ASKING = """
name: shell
agent: "*"
rules:
  - {id: list, kind: execute, action: allow, when: {command: {glob: "ls*"}}}
  - {id: small, tools: pay, action: allow, when: {amount: {"<": 500}}}
  - {id: rest, action: human_approval}
"""


@pytest.mark.parametrize(
    ("command", "parts", "unreadable"),
    [
        ("ls -l", [("ls -l", "allow", None, None)], None),
        (
            "ls && cat a > /etc/b 2> c < $X",
            [
                ("ls", "allow", None, None),
                ("> /etc/b", "human_approval", "write", True),
                ("> c", "human_approval", "write", False),
                ("< …", "human_approval", "read", None),
                ("cat a", "human_approval", None, None),
            ],
            None,
        ),
        # What was found before nobody can know any more is shown, and nothing of it is called allowed.
        (
            "ls | sh && rm x",
            [("ls", "human_approval", None, None), ("sh", "human_approval", None, None)],
            "a shell that reads its commands",
        ),
    ],
)
def test_a_command_is_taken_apart_with_a_verdict_on_each_part(
    command: str, parts: list[tuple[object, ...]], unreadable: str | None
) -> None:
    action = Action(agent="a", tool="bash", kind="execute", params={"command": command}, command=command)
    facts = Facts(workspace="/w", cwd="/w", resolve=as_named)
    steps = load_text(ASKING).explain(action, facts)
    found = parts_of(action, facts, steps)
    assert [(each.text, each.verdict, each.opens, each.outside) for each in found] == parts
    assert (facts.line(command).unreadable or "").startswith(unreadable or "")
    assert (facts.line(command).unreadable is None) == (unreadable is None)


def test_the_argument_that_a_rule_looked_at_is_told() -> None:
    action = Action(agent="a", tool="pay", kind="other", params={"amount": 700})
    (look,) = looks_of(load_text(ASKING).explain(action, Facts()))
    assert (look.rule, look.outcome) == ("shell:small", "no match")
    assert look.why.startswith("amount < 500")
