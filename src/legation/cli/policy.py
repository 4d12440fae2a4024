"""`legation policy`: check the rules, ask why, begin, and hold them against what agents really did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from legation.cli.command import (
    Console,
    Json,
    LocalFlags,
    PlaceFlags,
    Style,
    connect,
    line,
    say,
    say_json,
    settings_of,
    show,
    tell,
)
from legation.errors import Conflict, InvalidParams, TooLarge

if TYPE_CHECKING:
    from legation.approvals.policy.rules import PolicySet, RuleStep, Verdict
    from legation.wire.action import Action
    from legation.wire.api.approvals import Replay

app = App(name="policy", help="Rules for agents: check them, ask why, replay, begin with a good one.")

FILE: Final = Path("policy.yaml")
MAX_CALL: Final = 1024 * 1024  # characters of a call that is read
MOST_TEXT: Final = 1_000_000  # characters of policies that the server takes
CHANGED_SHOWN: Final = 50  # rows; --json has all that the server names
_STYLES: Final[dict[str, Style]] = {
    "allow": "green",
    "deny": "red",
    "supervisor": "yellow",
    "human_approval": "yellow",
}

Since = Annotated[
    str | None, Parameter(help="Not older: 24h, or a time such as 2026-01-31T08:00:00Z. Without it, all.")
]
Policies = Annotated[list[Path] | None, Parameter(name="--policy", help="File or folder; may be repeated.")]


@app.command
def check(
    *paths: Annotated[Path, Parameter(help="Files or folders, taken as one set. Without any: policy.yaml.")],
    json: Json = False,
) -> None:
    """Read policies as the server would, and list all that is wrong with them."""
    from legation.approvals.policy.load import load

    found = load(*(paths or (FILE,)))
    if json:
        say_json({"version": found.version, "policies": [_summary(policy) for policy in found.policies]})
        return
    for policy in found.policies:
        say(f"{policy.name}: agent {policy.agent}, rules: {', '.join(rule.id for rule in policy.rules)}")
    say(f"good; version {found.version[:12]}", "green")


def _summary(policy: Any) -> dict[str, object]:
    return {"name": policy.name, "agent": policy.agent, "rules": [rule.id for rule in policy.rules]}


@app.command
def explain(
    call: Annotated[
        str | None, Parameter(help="A JSON file, or - for standard input.", allow_leading_hyphen=True)
    ] = None,
    /,
    *,
    policy: Policies = None,
    tool: Annotated[str | None, Parameter(help="Its name, of an MCP server: server.tool.")] = None,
    kind: Annotated[str | None, Parameter(help="ACP's kind: read, edit, execute, ...")] = None,
    agent: Annotated[str | None, Parameter(help="Who calls.")] = None,
    param: Annotated[list[str] | None, Parameter(help="key=value, as JSON or text; may be repeated.")] = None,
    path: Annotated[list[str] | None, Parameter(help="A path; may be repeated.")] = None,
    url: Annotated[list[str] | None, Parameter(help="An address; may be repeated.")] = None,
    command: Annotated[str | None, Parameter(help="A shell line.")] = None,
    workspace: Annotated[Path | None, Parameter(help="The agent's folder; else the current one.")] = None,
    json: Json = False,
    settings: LocalFlags | None = None,
) -> None:
    """Say what the policies decide on a call, and why, rule by rule. Nothing is run.

    Without --policy: by policy.yaml where there is one, else by what is in force, which is the policy of the server that
    runs here, else that of the settings, else the starter `careful`.
    """
    from legation.approvals.policy.facts import Facts
    from legation.approvals.policy.load import ExampleFolders, load
    from legation.approvals.policy.shell.lines import prepare_here

    flags = {"tool": tool, "kind": kind, "agent": agent, "paths": path, "urls": url, "command": command}
    given = _call(call) | {key: value for key, value in flags.items() if value is not None}
    given |= _params(given, param or [])
    policies = load(*(policy or (FILE,))) if policy or FILE.exists() else _in_force(settings)
    where = ExampleFolders(str((workspace or Path()).resolve()), str(Path.home()))
    action = _action(given, where)
    facts = prepare_here(action, Facts(where.workspace, where.workspace, where.home))
    verdict, steps = policies.decide(action, facts), policies.explain(action, facts)
    if json:
        _say_json(policies, verdict, steps)
    else:
        _say_verdict(verdict, steps)


def _in_force(flags: LocalFlags | None) -> PolicySet:
    """Find the policies in force. Which they are goes to standard error: the answer is the same with and without it."""
    from legation.approvals.policies import STARTER, Policies
    from legation.approvals.policy.load import load
    from legation.cli.command import connect_to
    from legation.errors import ConfigInvalid, Unavailable

    chosen = settings_of(flags)
    try:
        with connect_to(chosen) as server:
            info = server.policy.info()
    except Unavailable:
        if chosen.url is not None:
            raise
        # None runs: what `exec` and the next server would take.
        found = Policies(chosen.policy)
        _say_source(f"no server runs here; with {found.source}")
        return found.current
    if info.source == f"starter {STARTER}":
        _say_source(f"the server's: {info.source}")
        return Policies(None).current
    try:
        policies = load(Path(info.source))
    except ConfigInvalid:
        policies = None
    if policies is None or policies.version != info.version:
        raise Unavailable(
            f"cannot explain the policies in force: those of {line(info.source)} are others here than the server's; "
            "correct that file, or give --policy"
        )
    _say_source(f"the server's: {info.source}")
    return policies


def _say_source(words: str) -> None:
    Console(sys.stderr).say(line(f"explained by the policies in force: {words}"), "dim")


def _call(source: str | None) -> dict[str, Any]:
    if source is None:
        return {}
    import msgspec

    try:
        text = sys.stdin.read(MAX_CALL) if source == "-" else Path(source).read_text()[:MAX_CALL]
    except OSError as error:
        raise InvalidParams(
            f"cannot read the call in {line(source)}: {error.strerror}; write it there, or give --tool and --kind"
        ) from None
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise InvalidParams(
            'cannot read the call: it is no JSON object; write {"tool": "...", "params": {...}}'
        )
    return found


def _params(given: dict[str, Any], words: list[str]) -> dict[str, Any]:
    from legation.approvals.policy.load import parse_value

    params = dict(given.get("params") or {})
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key:
            raise InvalidParams("cannot read a --param without `=`: write key=value")
        params[key] = parse_value(value)
    return {"params": params}


def _action(given: dict[str, Any], where: Any) -> Action:
    from legation.approvals.policy.load import BadCall, parse_call

    try:
        return parse_call(given, where)
    except BadCall as error:
        raise InvalidParams(f"cannot explain this call: it {error}") from None


def _say_json(policies: PolicySet, verdict: Verdict, steps: list[RuleStep]) -> None:
    import msgspec

    shown = msgspec.to_builtins(verdict)
    say_json(
        {"name": verdict.name, **shown, "version": policies.version, "steps": msgspec.to_builtins(steps)}
    )


def _say_verdict(verdict: Verdict, steps: list[RuleStep]) -> None:
    shown: tuple[str | None, str | None] | None = None
    taken = {step.kind for step in steps} - {None}
    for step in steps:
        if step.rule and (step.kind, step.part) != shown:
            shown = (step.kind, step.part)
            if step.part is not None or len(taken) > 1:
                say(line(f"as {step.kind}: {step.part or ''}"), "bold")
        name = step.policy if step.rule is None else f"{step.policy}:{step.rule}"
        says = f", {step.action}" if step.action and step.outcome != "no match" else ""
        say(line(f"{name} ({step.place}): {step.outcome}{says}"))
        say(f"    {line(step.why)}", "dim")
    say(f"{verdict.action} by {verdict.name}", _STYLES[verdict.action])
    say(f"    {line(verdict.reason)}", "dim")
    if verdict.message:
        say(f"    the agent is told: {line(verdict.message)}")


@app.command
def starters(*, json: Json = False) -> None:
    """List the policies to begin with."""
    from legation.approvals.policy import load as shipped

    found = shipped.starters()
    width = max(len(each.name) for each in found)
    for each in found:
        value = {"name": each.name, "summary": each.summary}
        tell(value, f"{each.name.ljust(width)}  {each.summary}", json=json)


@app.command
def init(
    path: Annotated[
        Path,
        Parameter(
            allow_leading_hyphen=True,
            help="The file to write, or - for standard output. One that exists is left alone.",
        ),
    ] = FILE,
    /,
    *,
    starter: Annotated[str, Parameter(help="Which; see `legation policy starters`.")] = "careful",
) -> None:
    """Write a policy to begin with."""
    from legation.approvals.policy import load as shipped

    chosen = shipped.starter(starter)
    if str(path) == "-":
        sys.stdout.write(chosen.text)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(chosen.text)
    except FileExistsError:
        raise Conflict(f"cannot write {path}: it exists; choose another name, or remove it") from None
    say(f"wrote {path} ({chosen.name}); test your edits with `legation policy check {path}`")


@app.command
def replay(
    *,
    policy: Annotated[
        list[Path], Parameter(negative="", help="The changed one: file or folder; may be repeated.")
    ],
    since: Since = None,
    agent: Annotated[str | None, Parameter(help="Only calls of this agent.")] = None,
    tool: Annotated[str | None, Parameter(help="Only calls of this tool.")] = None,
    limit: Annotated[int | None, Parameter(help="At most so many calls, the newest.")] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Say what a changed policy would have decided on the recorded calls. Nothing is changed by it.

    Limits and grants are left out: rule is held against rule.
    """
    text = policy_text(policy)
    with connect(settings) as server:
        found = server.policy.replay(text, since=since, agent=agent, tool=tool, limit=limit)
    if json:
        say_json(found)
    else:
        _say_replay(found)


def policy_text(paths: list[Path]) -> str:
    """Join all files to one text, once they were found good: a mistake is told with its file and line."""
    from legation.approvals.policy.document import Problems
    from legation.approvals.policy.load import files_of, load

    load(*paths)
    files = [file for path in paths for file in files_of(path, Problems())]
    text = "\n---\n".join(file.read_text("utf-8-sig") for file in files)
    if len(text) > MOST_TEXT:
        raise TooLarge(
            f"cannot replay policies of more than {MOST_TEXT} characters; replay some of the files"
        )
    return text


def _say_replay(found: Replay) -> None:
    for change, number in sorted(found.counts.items()):
        say(f"{number:>7}  {line(change)}")
    if found.changed:
        say()
        columns = {
            "trace": lambda call: call.trace_id,
            "time": lambda call: call.timestamp,
            "agent": lambda call: call.agent_id,
            "tool": lambda call: call.tool,
            "was": lambda call: f"{call.was} ({call.was_rule})",
            "would be": lambda call: f"{call.now} ({call.now_rule})",
        }
        show(found.changed[:CHANGED_SHOWN], columns, json=False, if_empty="")
        say()
    more = found.differing - min(len(found.changed), CHANGED_SHOWN)
    if more > 0:
        say(f"and {more} more; --json names up to 1000 of them", "dim")
    if found.unknown:
        say(f"{found.unknown} not decided again: their arguments are purged", "dim")
    if found.limited:
        say(f"{found.limited} not decided again: a limit had stopped them", "dim")
    style: Style = "yellow" if found.differing else "green"
    say(f"{found.differing} of {found.calls} calls would be decided otherwise", style)


@app.command
def hits(*, since: Since = None, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """Count how often each rule decided.

    One that never does may be misspelt, or behind another that takes all.
    """
    columns = {
        "rule": lambda rule: rule.policy_rule,
        "action": lambda rule: rule.action,
        "hits": lambda rule: str(rule.hits),
        "last": lambda rule: rule.last_at or "never",
    }
    with connect(settings) as server:
        show(server.policy.hits(since=since), columns, json=json, if_empty="no rules and no calls yet")
