"""Arguments that were meant to distract: all that a tool gets is judged, and what nobody can name is asked about."""

from typing import Any

import pytest
from tests.approvals.policy.rules import allows, call, decide, denies, policy

from legation.approvals.policy.load import EXAMPLE_FACTS, load_text, starter

INSIDE = {"paths": {"under": "$WORKSPACE"}}
LISTS = {"command": {"glob": "ls *"}}
DECOYS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (LISTS, {"command": "ls", "cmd": "rm -rf /"}),
    (LISTS, {"cmd": "ls", "options": {"command": "rm -rf /"}}),
    (LISTS, {"command": "ls 'a", "cmd": "b'"}),  # a line each: together they would be one that can be read
    (LISTS, {"command": ["ls", {"then": "rm -rf /"}]}),
    (LISTS, {"command": "ls", "args": "; rm -rf /"}),
    (LISTS, {"command": "ls", "x": "rm -rf /"}),
    (INSIDE, {"paths": ["ok", {"p": "/etc/p"}]}),
    (INSIDE, {"path": "ok", "filename": "/etc/p"}),
    (INSIDE, {"path": "ok", "target": "/etc/p"}),
    (INSIDE, {"path": "ok", "edits": [{"path": "/etc/p"}]}),
    (INSIDE, {"path": "ok", "whither": "/etc/p"}),
    (INSIDE, {"path": "ok", "x": {"y": [["~/.ssh/id_rsa"]]}}),
    (INSIDE, {"path": "ok", "changes": {"/etc/p": {}}}),
    ({"hosts": "a.test"}, {"url": "https://a.test", "mirror": "https://evil.test/"}),
    ({"hosts": "a.test"}, {"url": "https://a.test", "links": [{"x": "https://evil.test/"}]}),
]


@pytest.mark.parametrize(("when", "params"), DECOYS)
def test_a_decoy_is_not_allowed(when: dict[str, Any], params: dict[str, Any]) -> None:
    kind = "execute" if when is LISTS else "fetch" if "hosts" in when else "edit"
    assert not allows(when, tool="t", kind=kind, params=params)


def test_without_the_decoy_it_is() -> None:
    assert allows(
        LISTS, tool="t", kind="execute", params={"command": "ls", "description": "rm -rf / is not done"}
    )
    assert allows(
        LISTS, tool="t", kind="execute", params={"command": "ls", "cmd": "ls -l", "cwd": "/workspace"}
    )
    assert allows(
        INSIDE, tool="t", kind="edit", params={"path": "a", "edits": [{"path": "b", "new_text": "/etc"}]}
    )
    assert allows(
        {"hosts": "a.test"}, tool="t", kind="fetch", params={"url": "https://a.test", "prompt": "/"}
    )


def test_a_deny_needs_only_one_of_the_commands() -> None:
    removes = {"command": {"glob": "rm *"}}
    assert denies(removes, tool="t", params={"command": "ls", "cmd": "rm -rf /"})
    assert denies(removes, tool="t", params={"command": "ls", "deep": [{"script": "rm -rf /"}]})
    assert not denies(removes, tool="t", params={"command": "ls", "cmd": "ls -l"})


def test_an_unclear_call_is_asked_about_and_never_allowed_where_rules_look_at_places() -> None:
    params = {"path": "ok", "whither": "/etc/p"}
    inside = policy({"id": "in", "action": "allow", "when": INSIDE})
    verdict = decide(inside, tool="t", kind="edit", params=params)
    assert (verdict.action, verdict.name) == ("human_approval", "p:in")
    assert "whither" not in verdict.reason
    behind = policy({"action": "deny", "when": {"paths": {"glob": "**/.env"}}}, {"action": "allow"})
    assert decide(behind, tool="t", kind="edit", params=params).action == "human_approval"
    assert decide(behind, tool="t", kind="edit", params={"path": "ok", "whither": "there"}).action == "allow"
    last = inside.explain(call(tool="t", kind="edit", params=params), EXAMPLE_FACTS)[-1]
    assert last.action == "human_approval"
    assert "'whither' -> asked" in last.why


def test_a_rule_that_looks_at_no_argument_allows_an_unclear_call() -> None:
    by_name = policy({"action": "allow", "tools": "orders.*"}, {"action": "deny", "when": INSIDE})
    assert decide(by_name, tool="orders.find", params={"sku": "a/b"}).action == "allow"
    by_argument = policy({"action": "allow", "when": {"sku": {"glob": "a/*"}}})
    assert decide(by_argument, tool="orders.find", params={"sku": "a/b"}).action == "allow"


def test_what_is_asked_or_denied_anyway_stays_so() -> None:
    params = {"path": "ok", "whither": "/etc/p"}
    for action in ("supervisor", "deny"):
        assert (
            decide(policy({"action": action, "when": INSIDE}), tool="t", kind="edit", params=params).action
            == action
        )


# The calls of agents as their drivers tell them: nothing in them is unclear.
OF_AGENTS: list[dict[str, Any]] = [
    {"tool": "Read", "kind": "read", "params": {"file_path": "/workspace/a", "offset": 3, "limit": 9}},
    {"tool": "Grep", "kind": "search", "params": {"pattern": "/api/v1", "path": "src", "glob": "src/**/*.py", "-n": True}},
    {"tool": "Glob", "kind": "search", "params": {"pattern": "src/**/*.py", "path": "/workspace"}},
    {"tool": "Write", "kind": "edit", "params": {"file_path": "a.sh", "content": "rm -rf /tmp/x && ls"}},
    {"tool": "Edit", "kind": "edit", "params": {"file_path": "a", "old_string": "/a", "new_string": "/b"}},
    {"tool": "MultiEdit", "kind": "edit", "params": {"file_path": "a", "edits": [{"old_string": "/a", "new_string": ""}]}},
    {"tool": "NotebookEdit", "kind": "edit", "params": {"notebook_path": "a.ipynb", "new_source": "/x", "cell_type": "code"}},
    {"tool": "apply_patch", "kind": "edit", "params": {"changes": [{"path": "a", "kind": {"type": "update"}, "diff": "-/x"}]}},
    {"tool": "apply_patch", "kind": "edit", "params": {"patchText": "*** Begin Patch\n*** Add File: a\n+/x\n*** End Patch"}},
    {"tool": "edit", "kind": "edit", "params": {"filePath": "a", "oldString": "/a", "newString": "/b", "replaceAll": True}},
    {"tool": "list", "kind": "search", "params": {"path": ".", "ignore": ["node_modules/", "dist/**"]}},
    {"tool": "grep", "kind": "search", "params": {"pattern": "^/x", "path": ".", "include": "*.{ts,tsx}"}},
    {"tool": "edit_file", "kind": "edit", "params": {"path": "a", "old_str": "/a", "new_str": "/b"}},
    {"tool": "Bash", "kind": "execute", "params": {"command": "pytest -q", "description": "Run /bin/true", "timeout": 9}},
    {"tool": "exec_command", "kind": "execute", "params": {"command": "pytest", "cwd": "/workspace", "reason": "a/b"}},
    {"tool": "bash", "kind": "execute", "params": {"command": "pytest", "workdir": "/workspace", "description": "x"}},
    {"tool": "shell_command", "kind": "execute", "params": {"command": ["pytest", "-q"], "cwd": "/workspace"}},
]  # fmt: skip


@pytest.mark.parametrize("made", OF_AGENTS, ids=lambda made: str(made["params"])[:40])
def test_the_tools_of_agents_are_judged_as_before(made: dict[str, Any]) -> None:
    assert call(made).unclear == ()
    assert decide(load_text(starter("overnight").text), made).action == "allow"
