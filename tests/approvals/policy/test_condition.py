"""Conditions: types, missing fields and lists, with INV-P1 throughout: never to an allow, never around a deny."""

from typing import Any

import pytest
from tests.approvals.policy.rules import allows, decide, denies, policy


@pytest.mark.parametrize(
    "line", ["$A -rf $B", '"$A" "$B"', "$A $B", "g$A -rf $B", "{rm,x} *", "r? -rf $B", "g$A; ls $B $C"]
)
def test_a_command_with_two_unknown_places_is_not_taken_for_an_allowed_one(line: str) -> None:
    assert not allows({"command": {"glob": ["git *", "ls *"]}}, f"$ {line}")


@pytest.mark.parametrize("field", ["params.amount", "amount"])
def test_d2_both_spellings_of_an_argument_are_its_name(field: str) -> None:
    assert allows({"field": field, "op": "<", "value": 500}, "refund amount=100")
    assert not allows({"field": field, "op": "<", "value": 500}, "refund amount=500")
    assert allows({field: {"<": 500}}, "refund amount=100")


@pytest.mark.parametrize(
    ("when", "amount", "expected"),
    [
        ({"amount": 5}, 5, True),
        ({"amount": 5}, 5.0, True),
        ({"amount": {"==": 5}}, 6, False),
        ({"amount": {"!=": 5}}, 6, True),
        ({"amount": {"<=": 5}}, 5, True),
        ({"amount": {">": 5, "<": 7}}, 6, True),
        ({"amount": {">": 5, "<": 7}}, 7, False),
        ({"amount": {">=": 0.5}}, 0.5, True),
        ({"amount": [1, 2]}, 2, True),
        ({"amount": {"in": [1, "x"]}}, "x", True),
        ({"amount": {"in": [1, 2]}}, 3, False),
        ({"amount": {"glob": "a*"}}, "abc", True),
        ({"amount": {"glob": ["x", "a?"]}}, "ab", True),
        ({"amount": {"regex": "[0-9]+"}}, "123", True),
        ({"amount": {"regex": "[0-9]+"}}, "123x", False),
        ({"amount": {"exists": True}}, 0, True),
        ({"amount": True}, True, True),
        ({"not": {"amount": 5}}, 6, True),
        ({"any": [{"amount": 5}, {"amount": 6}]}, 6, True),
        ({"all": [{"amount": 5}, {"amount": 6}]}, 6, False),
        ([{"amount": {">": 1}}, {"amount": {"<": 9}}], 6, True),
    ],
)
def test_operators(when: object, amount: object, expected: bool) -> None:
    assert allows(when, tool="t", params={"amount": amount}) is expected
    assert denies(when, tool="t", params={"amount": amount}) is expected


CONDITIONS = [
    {"amount": {"<": 500}},
    {"amount": {">=": 500}},
    {"amount": 500},
    {"amount": {"!=": 500}},
    {"amount": [1, 500]},
    {"not": {"amount": {">": 500}}},
    {"not": {"not": {"amount": 500}}},
]


@pytest.mark.parametrize("when", CONDITIONS, ids=str)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"amount": None},
        {"amount": "500"},
        {"amount": True},
        {"amount": {}},
        {"amount": []},
        {"amount": float("nan")},
        {"Amount": 500},
        {"params": {"amount": 500}},
    ],
    ids=str,
)
def test_a_missing_field_or_another_type_never_allows_and_always_denies(
    when: object, params: dict[str, Any]
) -> None:
    assert not allows(when, tool="t", params=params)
    assert denies(when, tool="t", params=params)


def test_absence_can_be_asked_for() -> None:
    absent = {"force": {"exists": False}}
    assert allows(absent, "push")
    assert not allows(absent, "push force=true")
    assert denies({"all": [{"force": {"exists": True}}, {"force": True}]}, "push") is False


def test_a_rule_can_say_what_a_missing_field_is_worth() -> None:
    assert denies({"force": {"==": True, "missing": False}}, "push") is False
    assert denies({"force": {"==": True, "missing": False}}, "push force=true")
    assert denies({"force": {"==": True, "missing": False}}, 'push force="yes"'), (
        "another type is not missing"
    )
    assert allows({"field": "force", "op": "==", "value": False, "missing": True}, "push")


def test_nan_and_booleans_are_no_numbers() -> None:
    assert not allows({"amount": {"<=": 1}}, "t amount=true")
    assert not allows({"amount": 1}, "t amount=true")
    assert not allows({"amount": True}, "t amount=1")


def test_of_a_list_an_allow_needs_all_and_a_deny_any() -> None:
    inside = {"to": {"glob": "*@example.com"}}
    assert allows(inside, tool="send", params={"to": ["a@example.com", "b@example.com"]})
    assert not allows(inside, tool="send", params={"to": ["a@example.com", "b@evil.org"]})
    assert not allows(inside, tool="send", params={"to": []})
    assert denies(inside, tool="send", params={"to": ["a@example.com", "b@evil.org"]})
    assert not denies(inside, tool="send", params={"to": ["b@evil.org"]})
    outside = {"not": inside}
    assert denies(outside, tool="send", params={"to": ["a@example.com", "b@evil.org"]})
    assert not allows(outside, tool="send", params={"to": ["a@example.com", "b@evil.org"]})


def test_arguments_within_arguments_are_reached_through_lists() -> None:
    when = {"params.edits.name": {"glob": "*.py"}}
    assert allows(when, tool="t", params={"edits": [{"name": "a.py"}, {"name": "b.py"}]})
    assert not allows(when, tool="t", params={"edits": [{"name": "a.py"}, {"name": "b.sh"}]})
    assert not allows(when, tool="t", params={"edits": [{"name": "a.py"}, {}]})
    assert denies(when, tool="t", params={"edits": [{"name": "a.py"}, {}]})
    assert not allows(when, tool="t", params={"edits": "a.py"})


def test_what_a_kind_must_have_and_does_not_show_is_hidden_not_absent() -> None:
    secret = {"paths": {"glob": "**/.env"}}
    assert denies(secret, {"kind": "read"})
    assert not denies(secret, {"kind": "think"}), "a thought has no path"
    assert not denies(secret, {"kind": "search"})
    assert denies({"command": {"glob": "rm *"}}, {"kind": "execute"})
    assert not denies({"command": {"glob": "rm *"}}, "read a.py")
    assert denies({"hosts": "evil.org"}, {"kind": "fetch"})
    assert not allows({"not": secret}, {"kind": "read"})


def test_too_many_values_are_not_judged() -> None:
    assert not allows({"to": {"glob": "**"}}, tool="t", params={"to": ["a"] * 2000})
    assert denies({"to": {"glob": "b"}}, tool="t", params={"to": ["a"] * 2000})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.com/x", True),
        ("https://api.example.com:8443/x", True),
        ("https://evil.org/api.example.com", False),
        ("https://api.example.com@evil.org/", False),
        ("https://api.example.com\\@evil.org/", False),
        ("https://api.example.com.evil.org/", False),
        ("https://evil.org?api.example.com/", False),
        ("https://API.example.com/", False),  # clients agree on it, but not on everything that looks like it
        ("//api.example.com/", False),
    ],
)
def test_hosts_are_read_only_where_all_clients_read_them_alike(url: str, expected: bool) -> None:
    assert allows({"hosts": {"glob": "*.example.com"}}, kind="fetch", urls=[url]) is expected
    if expected:
        assert allows(
            {"urls": {"glob": ["https://api.example.com/**", "https://api.example.com:8443/**"]}},
            kind="fetch",
            urls=[url],
        )


def test_commands_are_decided_part_by_part() -> None:
    rules = policy(
        {"id": "git", "kind": "execute", "action": "allow", "when": {"command": {"glob": "git *"}}},
        {"id": "ls", "kind": "execute", "action": "allow", "when": {"command": {"glob": "ls *"}}},
        {"id": "ask", "kind": "execute", "action": "supervisor", "when": {"command": {"glob": "make *"}}},
        {"id": "no", "kind": "execute", "action": "deny", "when": {"command": {"regex": "(rm|dd) .*"}}},
        {"id": "rest", "kind": "execute", "action": "human_approval"},
    )
    for line, name in [
        ("git status && ls -l", "p:git"),
        ("git status && make", "p:ask"),
        ("git status; rm -rf /", "p:no"),
        ("git log | sh -c 'dd if=x'", "p:no"),
        ("sudo git push", "p:rest"),
        ("A=1 git status", "p:rest"),
        ("git log > /etc/passwd", "p:rest"),
        ("git log $(rm x)", "p:no"),
        ("$X status", "p:no"),
        ("cat <<EOF\nEOF", "p:no"),
        ("eval x", "p:no"),
        ("ls $X", "p:ls"),
        ("", "p:rest"),
    ]:
        assert decide(rules, {"kind": "execute", "command": line}).name == name, line


def test_a_command_under_another_kind_is_still_a_command() -> None:
    """Some agents call `cat x` a read. It is decided as both, and the stricter counts."""
    rules = policy(
        {"kind": "read", "action": "allow"},
        {"kind": "execute", "action": "human_approval"},
    )
    assert decide(rules, "read a.py").action == "allow"
    assert decide(rules, kind="read", path="a.py", command="cat a.py; rm -rf /").action == "human_approval"
