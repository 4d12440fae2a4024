"""Policies from a file or a folder: all of them, or an error that lists all that is wrong.

A folder is its `*.yaml` and `*.yml` files in the order of their names; hidden files and folders in it are left
alone. Each rule is tested with its examples whenever it is loaded, calls in a short form:

$ git status                         a shell command
read $WORKSPACE/src/a.py             a kind and the paths
fetch https://example.com/           a kind and the addresses
create_refund amount=100             a tool and its arguments
{tool: gmail.send, params: {to: a@b.c}, kind: other}
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.conditions import MAX_VALUES, Comparison, Condition, Joined
from legation.approvals.policy.document import Node, Problems, SourceFile, read_documents, shown, unknown
from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.policy.parse import read_policy
from legation.approvals.policy.patterns import is_literal, literal_prefix
from legation.approvals.policy.rules import EVERY, RULE_STEPS, Policy, PolicySet, Rule, Verdict
from legation.approvals.policy.shell.lines import prepare_here
from legation.approvals.policy.shell.split import split
from legation.approvals.policy.truth import NO
from legation.errors import InvalidParams, NotFound
from legation.wire.acp.updates import TOOL_KINDS, ToolCall
from legation.wire.action import Action, canonical_path

WORKSPACE: Final = "/workspace"
HOME: Final = "/home/you"
CALL_KEYS: Final = ("tool", "kind", "agent", "params", "path", "paths", "command", "url", "urls")


@dataclass(frozen=True, slots=True)
class ExampleFolders:
    """The folders that relative paths, `~` and `$WORKSPACE` of a short form mean."""

    workspace: str = WORKSPACE
    home: str = HOME

    def path(self, text: str) -> str:
        for name, folder in (("$WORKSPACE", self.workspace), ("$CWD", self.workspace), ("$HOME", self.home)):
            if text == name or text.startswith(f"{name}/"):
                text = folder + text[len(name) :]
        return canonical_path(text, cwd=self.workspace, home=self.home)


MOST_CHECKS: Final = 1_000_000  # of an example by a rule: a second of the processor
_PARSING: Final = 5_000  # checks that a line costs which takes a parser of its own

EXAMPLE_FACTS: Final = Facts(WORKSPACE, WORKSPACE, HOME, as_named)


class BadCall(Exception):
    """A call in the short form that is none: it says what is wrong."""


def parse_call(
    call: object,
    place: ExampleFolders,
    tool: str | None = None,
    kind: str | None = None,
    agent: str = "agent",
) -> Action:
    """Read a call in the short form. `tool`, `kind` and `agent` stand for what it leaves out."""
    given = _from_text(call) if isinstance(call, str) else call
    if not isinstance(given, dict) or not given:
        raise BadCall("is neither text nor a map; write `$ command`, `kind path`, `tool key=value` or a map")
    for key in given:
        if key not in CALL_KEYS:
            raise BadCall(f"has an unknown key {shown(key)}; known are {', '.join(CALL_KEYS)}")
    paths = tuple(place.path(path) for path in _texts(given, "path", "paths"))
    urls = _texts(given, "url", "urls")
    command, params = given.get("command"), given.get("params", {})
    texts = (given.get("tool", ""), given.get("agent", ""), "" if command is None else command)
    if not isinstance(params, dict) or not all(isinstance(text, str) for text in texts):
        raise BadCall("has a tool, an agent or a command that is no text, or params that are no map")
    kind = given.get("kind") or kind or ("execute" if command is not None else "fetch" if urls else "other")
    if kind not in TOOL_KINDS:
        raise BadCall(f"has an unknown kind {shown(kind)}; known are {', '.join(TOOL_KINDS)}")
    named = ToolCall(tool_call_id="", title="", name=given.get("tool") or tool, kind=kind, raw_input=params)
    try:
        # What a driver would make of the arguments: their paths, addresses and command.
        action = Action.from_tool_call(
            given.get("agent") or agent, named, cwd=place.workspace, home=place.home
        )
    except InvalidParams as error:
        raise BadCall(f"is none that could come: {error.message}") from None
    return msgspec.structs.replace(
        action,
        paths=tuple(dict.fromkeys((*paths, *action.paths))),
        command=action.command if command is None else command,
        other_commands=action.other_commands if command is None else action.commands,
        urls=tuple(dict.fromkeys((*urls, *action.urls))),
    )


def _texts(given: dict[str, Any], *keys: str) -> tuple[str, ...]:
    found = []
    for key in keys:
        value = given.get(key, [])
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str) or not item:
                raise BadCall(f"has {key} that is no text")
            found.append(item)
    return tuple(found)


def _from_text(text: str) -> dict[str, Any]:
    if text.startswith("$ "):
        return {"kind": "execute", "command": text[2:]}
    try:
        first, *words = shlex.split(text)
    except ValueError:
        raise BadCall("has a quote that does not end") from None
    if first in TOOL_KINDS and words and not any("=" in word.split("/", 1)[0] for word in words):
        of_url = all("://" in word for word in words)
        return {"kind": first, "urls" if of_url else "paths": words}
    params = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key:
            raise BadCall(f"has {shown(word)} where key=value should stand")
        params[key] = parse_value(value)
    return {"tool": first, "params": params}


def parse_value(text: str) -> object:
    """Read it as JSON where it is some, else as the text that it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_examples(source: SourceFile, node: Node, policy: Policy) -> None:
    """Check that every `match` is decided by its rule, in its policy, and no `not_match` is."""
    rules = node.value["rules"].value if isinstance(node.value, dict) else None
    decider = ExampleDecider(policy)
    left = MOST_CHECKS
    for item, rule in zip(rules if isinstance(rules, list) else [], policy.rules, strict=True):
        if not isinstance(item.value, dict):
            continue
        for key in ("match", "not_match"):
            for example in source.one_or_more(item.value[key]) if key in item.value else []:
                action = _example(example, rule)
                left -= decider.cost(action)
                if left < 0:
                    source.report(example.line, "too many examples for so many rules; leave some of them out")
                    return
                problem = _problem(action, key == "match", rule, decider)
                if problem:
                    source.report(example.line, f"the example {shown(example.plain())} {problem}")


def _example(example: Node, rule: Rule) -> Action | str:
    """Read the call of an example, or say what is wrong with it."""
    tool = next((glob for glob in rule.tools.globs if is_literal(glob)), None)
    kind = min(rule.kinds) if len(rule.kinds) == 1 else None
    try:
        return parse_call(example.plain(), ExampleFolders(), tool, kind)
    except BadCall as error:
        return str(error)


def _is_parsed(action: Action | str) -> bool:
    return (
        isinstance(action, Action) and action.command is not None and bool(split(action.command).unreadable)
    )


def _problem(action: Action | str, wanted: bool, rule: Rule, decider: ExampleDecider) -> str | None:
    if isinstance(action, str):
        return action
    budget = Budget()
    verdict = decider.decide(action, budget)
    if budget.is_spent:
        return f"cannot be decided: {budget.why}; write that rule's patterns shorter, or the example"
    by = "no rule of its policy" if verdict.policy == "default" else f"rule {verdict.rule}"
    if wanted and verdict.rule != rule.id:
        return f"should match rule {rule.id}, but {by} decides it; correct one of them"
    if not wanted and verdict.rule == rule.id:
        return f"should not match rule {rule.id}, but it does; correct one of them"
    return None


class ExampleDecider:
    """Decides examples by one policy alone: by those of its rules that may match, which are found by how tools, paths and
    commands begin. So many rules with an example each take as many looks, not the square of that."""

    def __init__(self, policy: Policy) -> None:
        self._policy = replace(policy, agent=EVERY)
        self._by: dict[str, dict[str, list[int]]] = {field: {} for field in ("", "tool", "paths", "command")}
        for number, rule in enumerate(policy.rules):
            field, beginnings = _beginnings(rule)
            for each in dict.fromkeys(beginnings):
                self._by[field].setdefault(each, []).append(number)
        self._lengths = {field: sorted({len(each) for each in found}) for field, found in self._by.items()}

    def cost(self, action: Action | str) -> int:
        """Count the checks of rules that it takes."""
        if isinstance(action, str):
            return 1
        return 1 + len(self._found(action)) + (_PARSING if _is_parsed(action) else 0)

    def decide(self, action: Action, budget: Budget) -> Verdict:
        found = self._found(action)
        budget.spend(RULE_STEPS * (len(self._policy.rules) - len(found)))
        rules = tuple(self._policy.rules[number] for number in found)
        alone = PolicySet([replace(self._policy, rules=rules)])
        return alone.decide(action, prepare_here(action, EXAMPLE_FACTS), budget)

    def _found(self, action: Action) -> list[int]:
        """Number the rules that may match, in their order. Where it cannot be told how something begins, all of them may."""
        if action.unclear:
            return [*range(len(self._policy.rules))]
        texts = {"": ("",), "tool": (action.tool,), "paths": _paths(action), "command": _commands(action)}
        found: set[int] = set()
        for field, known in self._by.items():
            if not texts[field]:
                found.update(number for numbers in known.values() for number in numbers)
            for text in texts[field]:
                for length in self._lengths[field]:
                    found.update(known.get(text[:length], ()))
        return sorted(found)


def _beginnings(rule: Rule) -> tuple[str, Sequence[str]]:
    """Find a field that must begin with one of some texts, or the rule does not match; else none, which is any."""
    tools = [literal_prefix(glob) for glob in rule.tools.globs]
    if all(tools):
        return "tool", tools
    needed = _needed(rule.when)
    if needed is None:
        return "", ("",)
    if needed.op != "under":
        return needed.field, needed.beginnings
    roots = [EXAMPLE_FACTS.root(folder) for folder in needed.beginnings]
    named = [each.named for each in roots if each is not None and each.named == each.firm == each.full]
    return (needed.field, named) if len(named) == len(roots) else ("", ("",))


def _needed(condition: Condition | None) -> Comparison | None:
    """Find a comparison whose NO is one of the whole condition."""
    if isinstance(condition, Comparison):
        return condition if condition.beginnings else None
    if isinstance(condition, Joined) and condition.ended_by is NO:
        return next((found for item in condition.items if (found := _needed(item)) is not None), None)
    return None


def _paths(action: Action) -> tuple[str, ...]:
    """List its paths; none where one of them may be another one, too."""
    plain = all(each.startswith("/") and "/.." not in each for each in action.paths)
    return action.paths if plain and len(action.paths) <= MAX_VALUES else ()


def _commands(action: Action) -> tuple[str, ...]:
    """List the simple commands of its lines; none where one of them may be any."""
    found: list[str] = []
    for text in action.commands if action.command is not None else ():
        line = split(text)
        if line.unreadable or not line.parts or any(None in part for part in line.parts):
            return ()
        found += ("".join(piece or "" for piece in part) for part in line.parts)
    return tuple(found)


MAX_BYTES: Final = 1024 * 1024  # of one file
MAX_FILES: Final = 1000
MAX_RULES: Final = 10_000
_SUFFIXES: Final = (".yaml", ".yml")


def load(*paths: Path) -> PolicySet:
    """Load them; ConfigInvalid with every problem, whose `data` has them as a list."""
    problems = Problems()
    texts = [
        (str(file), text)
        for path in paths
        for file in files_of(path, problems)
        if (text := _read(file, problems)) is not None
    ]
    return _compile(texts, problems)


def load_text(text: str, name: str = "policy") -> PolicySet:
    return _compile([(name, text)], Problems())


def files_of(path: Path, problems: Problems) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as error:
        problems.add(str(path), 0, f"cannot be read: {error.strerror}; correct its permissions")
        return []
    files = [path / name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]
    files = [file for file in files if not file.is_dir()]
    if not files:
        problems.add(str(path), 0, "no policies; put a .yaml file there, `legation policy init` writes one")
    if len(files) > MAX_FILES:
        problems.add(str(path), 0, f"more than {MAX_FILES} files; put several policies into one")
    return files[:MAX_FILES]


def _read(file: Path, problems: Problems) -> str | None:
    try:
        # Without waiting: a pipe that was put in its place must not hold us.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                problems.add(str(file), 0, "not a regular file; put the policies into one")
                return None
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        problems.add(
            str(file), 0, f"cannot be read: {error.strerror}; put it back, or correct its permissions"
        )
        return None
    if len(content) > MAX_BYTES:
        problems.add(str(file), 0, f"larger than {MAX_BYTES // 1024} KiB; split it into several files")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(str(file), line, "not UTF-8 text; save it as such")
        return None


def _compile(texts: list[tuple[str, str]], problems: Problems) -> PolicySet:
    policies: list[Policy] = []
    content: list[object] = []
    names: dict[str, str] = {}
    for file, text in texts:
        source = SourceFile(file, problems)
        for node in _policy_nodes(source, text):
            policy = read_policy(source, node)
            if policy is None:
                continue
            if policy.name in names:
                source.report(
                    node.line,
                    f"the name {shown(policy.name)} is that of the policy at {names[policy.name]}; write another",
                )
            names[policy.name] = policy.place
            check_examples(source, node, policy)
            policies.append(policy)
            content.append(node.plain())
    if sum(len(policy.rules) for policy in policies) > MAX_RULES:
        problems.add(texts[-1][0], 0, f"more than {MAX_RULES} rules in all; write fewer")
    problems.raise_if_any()
    return PolicySet(policies, content)


def _policy_nodes(source: SourceFile, text: str) -> list[Node]:
    """Find the policies of a text: one a document, or several under `policies:`."""
    before = len(source.problems.found)
    documents = read_documents(text, source.report)
    if not documents and len(source.problems.found) == before:
        source.report(1, "no policy in it; `legation policy init` writes one")
    found: list[Node] = []
    for node in documents:
        if isinstance(node.value, dict) and "policies" in node.value:
            parts = source.map(node, "a file with `policies`", ("policies",))
            found += source.items(parts["policies"], "`policies`")
        else:
            found.append(node)
    return found


_FOLDER: Final = Path(__file__).parent / "starters"
_SUFFIX: Final = ".yaml"


class Starter(NamedTuple):
    name: str
    summary: str
    text: str


def starters() -> list[Starter]:
    found = sorted(entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(_SUFFIX))
    return [_starter(name.removesuffix(_SUFFIX)) for name in found]


def starter(name: str) -> Starter:
    names = [each.name for each in starters()]
    if name not in names:
        raise NotFound(f"cannot find the starter: {unknown('starter', name, names)}")
    return _starter(name)


def _starter(name: str) -> Starter:
    text = (_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return Starter(name, text.splitlines()[0].removeprefix("# "), text)


T = TypeVar("T")
