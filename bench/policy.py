"""One decision over 100 rules: compiled as the product does it, or every rule scanned with `fnmatch`.

`python -m bench.policy product|naive CASE`: `tools` is a call that the last of the rules for its tool decides by an
argument; `command` a shell line of two parts; `path` a file in the workspace, with its links followed on the disk.

`python -m bench.policy bound CASE`: the processor's milliseconds of one decision, the slowest of some, at the bound of
what one may cost: `regex` is `.*a.{400}` on texts of 32 KiB, `rules` 10,000 rules with a glob each on one path.
"""

from __future__ import annotations

import fnmatch
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.measure import emit
from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.policy.load import load_text
from legation.wire.action import Action

RULES = 100
BATCH, BATCHES = 200, 100
WARM = 500
SLOW_BATCHES = 20


def rules(case: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "tools": [f"server{number}.write_*", f"*.danger{number}"],
            "action": "deny",
            "when": {"amount": {">": number}},
        }
        for number in range(RULES - 5)
    ]
    when: dict[str, Any] = {"amount": {"<": 500}}
    if case == "command":
        when = {"command": {"glob": ["git *", "ls *"]}}
    if case == "path":
        when = {"paths": {"under": "$WORKSPACE"}}
    return [
        *found,
        {"tools": "target.*", "action": "deny", "when": {"amount": {">": 10_000, "missing": False}}},
        {
            "tools": "target.*",
            "action": "human_approval",
            "when": {"currency": {"==": "USD", "missing": False}},
        },
        {
            "tools": "target.*",
            "action": "supervisor",
            "when": {"country": {"in": ["XX", "YY"], "missing": False}},
        },
        {"tools": "*.never", "action": "deny"},
        {"tools": "target.*", "action": "allow", "when": when},
    ]


def action(case: str, workspace: Path) -> Action:
    params = {"amount": 100, "currency": "EUR", "country": "DE"}
    if case == "command":
        return Action(
            agent="claude",
            tool="target.run",
            kind="execute",
            command="git status && ls -l src",
            params=params,
        )
    if case == "path":
        path = str(workspace / "src" / "main.py")
        return Action(agent="claude", tool="target.edit", kind="edit", paths=(path,), params=params)
    return Action(agent="claude", tool="target.refund", params=params)


def product(case: str, workspace: Path) -> Callable[[], str]:
    policies = load_text(yaml.safe_dump({"name": "bench", "rules": rules(case)}, sort_keys=False))
    call, facts = action(case, workspace), Facts(str(workspace), str(workspace))
    return lambda: policies.decide(call, facts).action


def naive(case: str, workspace: Path) -> Callable[[], str]:
    """What one writes first; of the conditions only those on numbers and equality, and no safety in any."""
    scanned, call = rules(case), action(case, workspace)

    def holds(when: dict[str, Any]) -> bool:
        for field, ops in when.items():
            actual = call.params.get(field)
            for op, value in ops.items():
                if op == ">" and not actual > value:
                    return False
                if op == "<" and not actual < value:
                    return False
                if (op == "==" and actual != value) or (op == "in" and actual not in value):
                    return False
        return True

    def decide() -> str:
        for rule in scanned:
            globs = rule["tools"] if isinstance(rule["tools"], list) else [rule["tools"]]
            if any(fnmatch.fnmatchcase(call.tool, glob) for glob in globs) and holds(rule.get("when", {})):
                return str(rule["action"])
        return "deny"

    return decide


def bound(case: str) -> None:
    if case == "regex":
        found: list[dict[str, Any]] = [{"action": "deny", "when": {"text": {"regex": ".*a.{400}!"}}}]
        call = Action(
            agent="claude",
            tool="write",
            params={"text": ["".join(random.Random(1).choices("ab", k=32 * 1024))] * 20},
        )
    else:
        found = [
            {"action": "deny", "when": {"paths": {"glob": f"**/secret{number}"}}} for number in range(9999)
        ]
        call = Action(
            agent="claude", tool="edit", kind="edit", paths=("/workspace/src/legation/names/main.py",)
        )
    policies = load_text(yaml.safe_dump({"name": "bench", "rules": [*found, {"action": "allow"}]}))
    facts, taken, action = Facts("/workspace", "/workspace", None, as_named), [], ""
    for _ in range(SLOW_BATCHES):
        started = time.thread_time()
        action = policies.decide(call, facts).action
        taken.append(time.thread_time() - started)
    if action != ("deny" if case == "regex" else "allow"):
        raise RuntimeError("cannot measure: the decision is not the expected one; correct the rules")
    # The first of a policy makes the states that the others use.
    emit({"first ms": taken[0] * 1e3, "ms": max(taken[1:]) * 1e3})


def main(who: str, case: str, scratch: Path) -> None:
    if who == "bound":
        bound(case)
        return
    workspace = scratch / "policy-workspace"
    (workspace / "src").mkdir(parents=True, exist_ok=True)
    (workspace / "src" / "main.py").touch()
    decide = (product if who == "product" else naive)(case, workspace)
    for _ in range(WARM):
        if decide() != "allow":
            raise RuntimeError("cannot measure: the decision is not the expected one; correct the rules")
    taken = []
    for _ in range(BATCHES):
        started = time.process_time()
        for _ in range(BATCH):
            decide()
        taken.append((time.process_time() - started) / BATCH)
    emit({"CPU µs/decision": statistics.median(taken) * 1e6})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
