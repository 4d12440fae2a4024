"""`legation policy replay` and `hits`: rules held against what agents really did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from legation.cli.connection import connect
from legation.cli.flags import Json, PlaceFlags
from legation.cli.table import say_json, show
from legation.cli.terminal import Style, Terminal, line
from legation.errors import TooLarge
from legation.wire.api.approvals import Replay

MOST_TEXT: Final = 1_000_000  # characters that the server takes
CHANGED_SHOWN: Final = 50  # rows; --json has all that the server names

Since = Annotated[
    str | None, Parameter(help="Not older: 24h, or a time such as 2026-01-31T08:00:00Z. Without it, all.")
]


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
) -> int:
    """Say what a changed policy would have decided on the recorded calls."""
    text = policy_text(policy)
    with connect(settings) as server:
        found = server.policy.replay(text, since=since, agent=agent, tool=tool, limit=limit)
    if json:
        say_json(found)
    else:
        _say(found)
    return 0


def policy_text(paths: list[Path]) -> str:
    """All files as one text, once they were found good: a mistake is told with its file and line."""
    from legation.approvals.policy.load import files_of, load
    from legation.approvals.policy.problems import Problems

    load(*paths)
    files = [file for path in paths for file in files_of(path, Problems())]
    text = "\n---\n".join(file.read_text("utf-8-sig") for file in files)
    if len(text) > MOST_TEXT:
        raise TooLarge(
            f"cannot replay policies of more than {MOST_TEXT} characters; replay some of the files"
        )
    return text


def _say(found: Replay) -> None:
    out = Terminal()
    for change, number in sorted(found.counts.items()):
        out.say(f"{number:>7}  {line(change)}")
    if found.changed:
        out.say()
        columns = {
            "trace": lambda call: call.trace_id,
            "time": lambda call: call.timestamp,
            "agent": lambda call: call.agent_id,
            "tool": lambda call: call.tool,
            "was": lambda call: f"{call.was} ({call.was_rule})",
            "would be": lambda call: f"{call.now} ({call.now_rule})",
        }
        show(found.changed[:CHANGED_SHOWN], columns, json=False, if_empty="")
        out.say()
    more = found.differing - min(len(found.changed), CHANGED_SHOWN)
    if more > 0:
        out.say(f"and {more} more; --json names up to 1000 of them", "dim")
    if found.unknown:
        out.say(f"{found.unknown} not decided again: their arguments are purged", "dim")
    if found.limited:
        out.say(f"{found.limited} not decided again: a limit had stopped them", "dim")
    style: Style = "yellow" if found.differing else "green"
    out.say(f"{found.differing} of {found.calls} calls would be decided otherwise", style)


def hits(*, since: Since = None, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Count how often each rule decided."""
    columns = {
        "rule": lambda rule: rule.policy_rule,
        "action": lambda rule: rule.action,
        "hits": lambda rule: str(rule.hits),
        "last": lambda rule: rule.last_at or "never",
    }
    with connect(settings) as server:
        show(server.policy.hits(since=since), columns, json=json, if_empty="no rules and no calls yet")
    return 0
