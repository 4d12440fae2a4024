"""D24: what is under a folder, on a real disk."""

import json
from pathlib import Path

import pytest
from tests.approvals.policy.rules import allows, denies

from legation.approvals.policy.facts import Facts
from legation.approvals.policy.load import load_text
from legation.wire.acp.updates import ToolCall
from legation.wire.action import Action, canonical_path

IN_PROJECT = {"paths": {"under": "$WORKSPACE"}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "project"
    (folder / "src").mkdir(parents=True)
    (tmp_path / "home" / "project-evil").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("x")
    return folder


@pytest.fixture
def facts(project: Path) -> Facts:
    return Facts(workspace=str(project), cwd=str(project), home=str(project.parent))


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("src/main.py", True),
        (".", True),
        ("new/folder/file.py", True),
        ("src/../src/a.py", True),
        ("../../etc/passwd", False),
        ("src/../../project-evil/x", False),
        ("../project-evil/x", False),
        ("../project", True),
        ("..", False),
        ("/etc/passwd", False),
        ("~/x", False),
        ("~/project/x", True),
        ("file:///etc/passwd", False),
    ],
)
def test_d24_neither_dots_nor_a_like_name_lead_out(
    path: str, inside: bool, project: Path, facts: Facts
) -> None:
    named = canonical_path(path, cwd=str(project), home=facts.home)
    assert allows(IN_PROJECT, {"kind": "edit", "path": named}, facts) is inside
    assert denies({"not": IN_PROJECT}, {"kind": "edit", "path": named}, facts) is not inside


@pytest.mark.parametrize("path", ["src/../../../etc/passwd", "../project-evil/x", "../../etc/passwd"])
def test_d24_in_an_argument_as_it_was_written(path: str, facts: Facts) -> None:
    when = {"params.target": {"under": "."}}
    assert not allows(when, {"tool": "t", "params": {"target": path}}, facts)
    assert allows(when, {"tool": "t", "params": {"target": "src/a.py"}}, facts)


def test_d24_links_are_followed(project: Path, facts: Facts) -> None:
    (project / "out").symlink_to(project.parents[1] / "etc")
    (project / "in").symlink_to(project / "src")
    assert not allows(IN_PROJECT, {"kind": "read", "path": str(project / "out" / "passwd")}, facts)
    assert not allows(IN_PROJECT, {"kind": "edit", "path": str(project / "out" / "new")}, facts)
    assert allows(IN_PROJECT, {"kind": "read", "path": str(project / "in" / "a.py")}, facts)


def test_a_link_and_two_dots_must_stay_inside_both_ways(project: Path, facts: Facts) -> None:
    """`out/../x` is x beside the link for some programs, and beside the link's target for others."""
    (project / "out").symlink_to(project.parents[1] / "etc")
    when = {"params.target": {"under": "$WORKSPACE"}}
    assert not allows(when, {"tool": "t", "params": {"target": "out/../x"}}, facts)
    assert denies(when, {"tool": "t", "params": {"target": "out/../x"}}, facts)


def test_a_link_outside_and_two_dots_do_not_lead_in(project: Path, facts: Facts) -> None:
    """To a program that takes the path as text, `../elsewhere/link/../x` is outside."""
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(project / "src")
    when = {"params.target": {"under": "$WORKSPACE"}}
    assert not allows(when, {"tool": "t", "params": {"target": "../elsewhere/link/../x"}}, facts)


def test_a_link_into_a_closed_folder_is_closed(project: Path, facts: Facts) -> None:
    ssh = project.parent / ".ssh"
    ssh.mkdir()
    (project / "notes").symlink_to(ssh)
    closed = {"paths": {"under": "~/.ssh"}}
    assert denies(closed, {"kind": "read", "path": str(project / "notes" / "id")}, facts)
    assert denies(
        {"paths": {"glob": "**/.ssh/**"}}, {"kind": "read", "path": str(project / "notes" / "id")}, facts
    )
    assert not denies(closed, {"kind": "read", "path": str(project / "src")}, facts)


def test_a_closed_folder_that_is_a_link_is_closed_on_both_ends(project: Path, facts: Facts) -> None:
    real = project.parents[1] / "keys"
    real.mkdir()
    (project.parent / ".ssh").symlink_to(real)
    closed = {"paths": {"under": "~/.ssh"}}
    assert denies(closed, {"kind": "read", "path": str(real / "id")}, facts)
    assert denies(closed, {"kind": "read", "path": str(project.parent / ".ssh" / "id")}, facts)


def test_an_agent_cannot_widen_a_rule_by_a_link_in_its_place(project: Path, facts: Facts) -> None:
    (project / "build").symlink_to("/")
    for folder in ("$WORKSPACE/build", str(project / "build")):
        fresh = Facts(facts.workspace, facts.cwd, facts.home)
        when = {"paths": {"under": folder}}
        assert not allows(when, {"kind": "edit", "path": "/etc/passwd"}, fresh)
        assert not allows(when, {"kind": "edit", "path": str(project / "build" / "etc")}, fresh)


def test_a_workspace_behind_a_link_is_the_workspace(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    facts = Facts(workspace=str(tmp_path / "link"), cwd=str(tmp_path / "link"))
    assert allows(IN_PROJECT, {"kind": "read", "path": str(project / "a")}, facts)
    assert allows(IN_PROJECT, {"kind": "read", "path": str(tmp_path / "link" / "a")}, facts)


def test_a_loop_of_links_is_unknown(project: Path, facts: Facts) -> None:
    (project / "a").symlink_to(project / "b")
    (project / "b").symlink_to(project / "a")
    path = {"kind": "read", "path": str(project / "a" / "x")}
    assert not allows(IN_PROJECT, path, facts)
    assert denies(IN_PROJECT, path, facts)


def test_every_path_counts(project: Path, facts: Facts) -> None:
    both = {"kind": "move", "paths": [str(project / "a"), "/etc/x"]}
    assert not allows(IN_PROJECT, both, facts)
    assert denies({"paths": {"under": "/etc"}}, both, facts)
    assert allows({"paths": {"under": ["$WORKSPACE", "/etc"]}}, both, facts)


def test_without_a_workspace_nothing_is_in_it() -> None:
    nowhere = Facts()
    assert not allows(IN_PROJECT, {"kind": "read", "path": "/x"}, nowhere)
    assert denies(IN_PROJECT, {"kind": "read", "path": "/x"}, nowhere)
    assert not allows({"cwd": {"under": "/"}}, "t", nowhere)


def test_a_harmless_name_for_a_secret_is_no_help(project: Path, facts: Facts) -> None:
    (project / ".env").write_text("KEY=1")
    (project / "readme.md").symlink_to(project / ".env")
    path = {"kind": "read", "path": str(project / "readme.md")}
    assert denies({"paths": {"glob": "**/.env"}}, path, facts)
    assert not allows({"paths": {"glob": "**/*.md"}}, path, facts)


@pytest.mark.parametrize(
    "path", ["out/../passwd", "~/.ssh/id", "~root/.ssh/id", "file:/etc/passwd", "FILE:///etc/passwd"]
)
@pytest.mark.parametrize("when", [IN_PROJECT, {"path": {"under": "$WORKSPACE"}}])
def test_no_way_of_writing_a_path_leads_out(when: dict[str, object], path: str, project: Path) -> None:
    (project.parents[1] / "etc" / "deep").mkdir()
    (project / "out").symlink_to(project.parents[1] / "etc" / "deep")
    facts = Facts(
        workspace=str(project), cwd=str(project)
    )  # as of an HTTP tool: whose home it knows is its own
    call = ToolCall(tool_call_id="", title="", name="t", kind="edit", raw_input={"path": path})
    action = Action.from_tool_call("claude", call, cwd=str(project))
    policy = {"name": "p", "rules": [{"id": "in", "tools": "t", "action": "allow", "when": when}]}
    assert load_text(json.dumps(policy)).decide(action, facts).action == "deny"


def test_an_address_of_a_file_does_not_hide_behind_one_of_a_host() -> None:
    params = {"url": "https://ok.test/", "uri": "file:///etc/passwd"}
    call = ToolCall(tool_call_id="", title="", name="t", kind="fetch", raw_input=params)
    rule = {"id": "ok", "kind": "fetch", "action": "allow", "when": {"hosts": {"in": ["ok.test"]}}}
    policies = load_text(json.dumps({"name": "p", "rules": [rule]}))
    assert policies.decide(Action.from_tool_call("claude", call, cwd="/w"), Facts()).action == "deny"
