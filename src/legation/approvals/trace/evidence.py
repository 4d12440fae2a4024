"""Evidence of an approval: what a person looks at beside its arguments, and why a person is asked.

Where its paths lead and what its agent says it would change are taken down when it is asked, for both may be otherwise a
moment later. They are content: sealed with the call, gone with its key. What levels 0 to 2 said is read from the steps.

INV-E1  No file is opened for it: what is not in the call, or in what its agent told of it, is not known.
INV-E2  Too much of it never keeps a call from being asked about: a diff that is too long is kept by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.policy.facts import Facts, RuleFolder, contains, normal
from legation.approvals.policy.rules import RuleStep
from legation.approvals.policy.shell.split import begun
from legation.approvals.policy.truth import YES
from legation.approvals.trace.step import MAX_CONTENT, ChainStep, ContentName, StepKind
from legation.wire import jsontext
from legation.wire.acp.updates import Diff
from legation.wire.action import Action
from legation.wire.api.approvals import (
    ApprovalDiff,
    ApprovalPath,
    AskedPerson,
    AskedPolicy,
    AskedSupervisor,
    CommandPart,
    RuleLook,
    WhyAsked,
    rfc3339,
)

MOST_LOOKS: Final = 20  # rules that an approval shows
MOST_DIFF: Final = 4 * 1024 * 1024  # characters of all diffs of a call: more than anybody reads
_MOST_ESCAPED: Final = 6  # bytes that JSON makes of a character, at most
_WRITES: Final = frozenset({"edit", "move", "other"})  # kinds of calls that may write a file
_OPENS: Final[Mapping[str, Literal["read", "write"]]] = {"<": "read", ">": "write"}
# Names of arguments under which tools take the text of a file, and the two texts of a replacement.
_CONTENTS: Final = ("content", "contents", "file_text", "new_content", "text")
_OLD: Final = ("old_string", "old_text", "oldText", "old_str")
_NEW: Final = ("new_string", "new_text", "newText", "new_str")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    paths: tuple[ApprovalPath, ...] = ()
    diffs: tuple[ApprovalDiff, ...] = ()

    @property
    def contents(self) -> dict[ContentName, object]:
        """Make JSON values for the trace of what there is of it: apart, for a list shows paths and no diffs."""
        kept: dict[ContentName, object] = msgspec.to_builtins(self)
        return {name: value for name, value in kept.items() if value}


def evidence_of(action: Action, facts: Facts, diffs: Sequence[Diff] = ()) -> Evidence:
    """Take it down, when it is asked: `facts` have looked the paths up."""
    paths = tuple(_paths(action, facts))
    if not diffs:
        return Evidence(paths=paths)
    kept = tuple(_kept(diffs, MOST_DIFF))
    length = sum(len(each.old_text or "") + len(each.new_text or "") for each in kept)
    # A character may take six bytes of JSON: few texts are like that, and they are looked at whole.
    if length * _MOST_ESCAPED > MAX_CONTENT and len(jsontext.write(kept)) > MAX_CONTENT // 2:
        kept = tuple(_kept(diffs, 0))
    return Evidence(paths=paths, diffs=kept)


def _paths(action: Action, facts: Facts) -> Iterable[ApprovalPath]:
    root = facts.root("$WORKSPACE") if facts.workspace is not None else None
    for path in action.paths:
        absolute = facts.absolute(path)
        real = None if absolute is None else facts.resolve(absolute)
        if absolute is None or real is None:
            yield ApprovalPath(path=path, real=real)
            continue
        inside = None
        if root is not None and root.holds(absolute, real) is YES:
            inside = True
        elif root is not None and not contains(root.firm, real):
            # Else where it leads is known; but of an agent elsewhere it is only said to lead there, and is named otherwise.
            inside = False
        yield ApprovalPath(path=path, real=real, inside=inside, link=_is_link(absolute, real, root))


def _is_link(absolute: str, real: str, root: RuleFolder | None) -> bool:
    """Tell whether it leads elsewhere than it says. That the way to the workspace has links is the owner's matter."""
    named = normal(absolute)
    if root is not None and contains(root.named, named):
        named = normal(root.firm + named.removeprefix(root.named))
    return real != named


def _kept(diffs: Iterable[Diff], room: int) -> Iterable[ApprovalDiff]:
    for each in diffs:
        size = len(each.new_text) + len(each.old_text or "")
        cut = size > room
        room -= 0 if cut else size
        yield ApprovalDiff(
            path=each.path,
            old_text=None if cut else each.old_text,
            new_text=None if cut else each.new_text,
            source="agent",
            cut=cut,
        )


# What is shown of it.


def read_evidence(said: Mapping[ContentName, object] | Mapping[str, object]) -> Evidence:
    """Read it from what was said in a trace, by name. A member that a later release adds is ignored by an older one."""
    found = {name: value for name, value in said.items() if name in Evidence.__struct_fields__}
    return msgspec.convert(found, Evidence)


def diffs_of(
    evidence: Evidence, kind: str, paths: Sequence[str], params: Mapping[str, object] | None
) -> list[ApprovalDiff]:
    """List what would change: as the agent told it, else as far as the arguments say so."""
    if evidence.diffs:
        return [_mended(each) for each in evidence.diffs]
    if params is None or kind not in _WRITES or len(paths) != 1:
        return []
    edits = params.get("edits")
    changes = [params, *(edits if isinstance(edits, list) else [])]
    found = [_written(paths[0], each) for each in changes if isinstance(each, Mapping)]
    return [_mended(each) for each in found if each is not None]


def _written(path: str, change: Mapping[str, object]) -> ApprovalDiff | None:
    new = _text(change, _NEW)
    old = _text(change, _OLD) if new is not None else None
    new = _text(change, _CONTENTS) if new is None else new
    if new is None:
        return None
    return ApprovalDiff(path=path, old_text=old, new_text=new, source="arguments")


def _text(params: Mapping[str, object], names: Iterable[str]) -> str | None:
    return next((found for name in names if isinstance(found := params.get(name), str)), None)


def _mended(diff: ApprovalDiff) -> ApprovalDiff:
    # An agent can send half of a character, and no answer may fail for that: `?` stands for it.
    old, new = diff.old_text, diff.new_text
    return msgspec.structs.replace(
        diff,
        path=writable(diff.path),
        old_text=None if old is None else writable(old),
        new_text=None if new is None else writable(new),
    )


def writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def parts_of(action: Action, facts: Facts, steps: Sequence[RuleStep]) -> list[CommandPart]:
    """Take the command of a call apart. `steps`: why the policy in force decides on it as it does."""
    if action.command is None:
        return []
    ends: dict[str | None, RuleStep] = {}
    for step in steps:  # of each part the last step is the one that ends the search
        if step.rule is not None and step.outcome != "no match":
            ends[step.part] = step
    line = facts.line(action.command)
    found = begun(action.command) if line.unreadable else line.parts
    texts = ["".join("…" if piece is None else piece for piece in part) for part in found]
    return [_part(text, facts, ends.get(text, ends.get(None))) for text in texts]


def _part(text: str, facts: Facts, end: RuleStep | None) -> CommandPart:
    sign, _, name = text.partition(" ")
    opens = _OPENS.get(sign)
    outside = None
    if opens is not None and "…" not in name and facts.workspace is not None:
        path = facts.absolute(name)  # by its name: no look at the disk, which may be another one when it runs
        outside = None if path is None else not contains(normal(facts.workspace), normal(path))
    return CommandPart(
        text=writable(text),
        opens=opens,
        outside=outside,
        verdict=None if end is None else end.action,
        rule=None if end is None else f"{end.policy}:{end.rule}",
    )


def looks_of(steps: Iterable[RuleStep]) -> list[RuleLook]:
    """List the rules that looked at something of the call besides its tool and kind."""
    found = [
        RuleLook(rule=f"{step.policy}:{step.rule}", outcome=step.outcome, why=writable(step.why))
        for step in steps
        if step.rule is not None and " -> " in step.why and step.part is None
    ]
    return found[:MOST_LOOKS]


def why_asked(
    approval: Approval, steps: Sequence[ChainStep], said: Mapping[tuple[str, int, str], object], now_ms: int
) -> WhyAsked:
    """Tell what each level said, up to now. `said`: what was said in the steps, by server, number and name."""
    own = [step for step in steps if step.approval_id == approval.id]
    reason = None
    for step in own:
        if step.step == StepKind.DECIDED and step.policy_version == approval.policy_version:
            reason = said.get((step.server, step.seq, "why"))
    policy = AskedPolicy(
        verdict=approval.verdict, rule=approval.policy_rule, reason=None if reason is None else str(reason)
    )
    return WhyAsked(
        policy=policy,
        supervisor=_supervisor(approval, own, said, now_ms),
        person=_person(approval, now_ms),
    )


def _supervisor(
    approval: Approval,
    steps: Sequence[ChainStep],
    said: Mapping[tuple[str, int, str], object],
    now_ms: int,
) -> AskedSupervisor:
    if approval.verdict == "human_approval":
        return AskedSupervisor(state="not-asked")
    over_at = approval.escalated_at or approval.resolved_at
    waited = (now_ms if over_at is None else over_at) - approval.created_at
    escalated = next((step for step in reversed(steps) if step.step == StepKind.ESCALATED), None)
    if escalated is not None:
        words = said.get((escalated.server, escalated.seq, "reasoning"))
        state = {"no-supervisor": "absent", "undecided": "undecided"}.get(escalated.reason or "", "escalated")
        return AskedSupervisor(
            state=state,  # type: ignore[arg-type]
            by=approval.escalated_by if state == "escalated" else None,
            reasoning=None if words is None else str(words),
            waited_ms=waited,
        )
    if approval.resolver_level == 1:
        resolved = next((step for step in reversed(steps) if step.step == StepKind.RESOLVED), None)
        words = None if resolved is None else said.get((resolved.server, resolved.seq, "reasoning"))
        return AskedSupervisor(
            state="decided",
            by=approval.resolved_by,
            reasoning=None if words is None else str(words),
            confidence=approval.confidence,
            waited_ms=waited,
        )
    if approval.resolver_kind is not None:  # a person, or a grant, which is a person's
        return AskedSupervisor(state="passed-over", waited_ms=waited)
    if approval.status_at(now_ms) is not ApprovalState.PENDING:
        return AskedSupervisor(state="undecided", waited_ms=waited)
    if approval.claimed_level == 1 and (approval.claimed_until or 0) > now_ms:
        return AskedSupervisor(state="looking", by=approval.claimed_by, waited_ms=waited)
    return AskedSupervisor(state="waiting", waited_ms=waited)


def _person(approval: Approval, now_ms: int) -> AskedPerson:
    asked = approval.escalated_at or approval.created_at if approval.needs == "person" else None
    since = None if asked is None else rfc3339(asked)
    reviewers = list(approval.reviewers)
    if approval.resolver_level == 2:
        return AskedPerson(state="decided", since=since, reviewers=reviewers)
    if approval.status_at(now_ms) is not ApprovalState.PENDING:
        return AskedPerson(state="over", since=since, reviewers=reviewers)
    state = "not-yet" if asked is None else "waiting"
    return AskedPerson(state=state, since=since, reviewers=reviewers)  # type: ignore[arg-type]
