"""The reference pages that come from the code: `python -m tools.pages` writes them, and so does `./dev check --fix`.

With `--check` nothing is written: it fails where a page is not what the code says. The contract of events, which tests
compare, is written only under a new version.
"""

import json
import sys
from pathlib import Path
from typing import Final

from legation.errors import STATUS, leaves
from legation.host.session import TABLE, Act, State
from legation.runs import states
from legation.settings import FIELDS, flag, variable
from tools import events, rehearsal

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
CONTRACT = ROOT / "tests" / "tools" / "contract.json"


def pages() -> dict[str, str]:
    return {
        "errors.md": error_codes(),
        "settings.md": settings(),
        "events.md": events.page(),
        "rehearsal.md": rehearsal.page(),
        "session-states.md": session_states(),
        "run-states.md": run_states(),
    }


def error_codes() -> str:
    """List the codes of errors, each with its class, HTTP status and exit code."""
    kinds = leaves()
    rows = [
        f"| `{code}` | `{kinds[code].__name__}` | {status.http} | {status.exit} | {kinds[code].__doc__} |"
        for code, status in STATUS.items()
    ]
    return "\n".join([_ERRORS, *rows, ""])


_ERRORS: Final = """\
# Errors

Every error has one code out of this closed set. In Python it is a class of `legation.errors`, all below
`LegationError`, with `code`, `message` and `data`; over HTTP it is a problem (RFC 9457,
`application/problem+json`) with the code as `code`; a command ends with the exit code. Exit code 0 means
success, and a number never changes its meaning.

| code | class | HTTP | exit | meaning |
|---|---|---|---|---|"""


def settings() -> str:
    """List the settings, each with its flag, variable and default."""
    rows = [
        f"| `{each.name}` | {f'`{flag(each.name)}`' if each.flag else '-'} | `{variable(each.name)}` | "
        f"{f'`{each.default}`' if each.default else 'none'} | {each.description} |"
        for each in FIELDS
    ]
    return "\n".join([_SETTINGS, *rows, ""])


_SETTINGS: Final = """\
# Settings

A setting is taken from the first of these that names it:

1. the flag of the command,
2. the environment variable,
3. the key in `legation.toml`: the file that `LEGATION_CONFIG` names, else
   `$XDG_CONFIG_HOME/legation/legation.toml`, else `~/.config/legation/legation.toml`,
4. the default.

The current folder is never searched for `legation.toml`: a repository must not configure the program that
watches over it. Unknown names and unusable values are refused, all of them in one error, also those that a
stronger source overrules. A command takes the flags that matter to it; `legation doctor` shows every value
and where it came from.

Durations are seconds, or a text with a unit: `"500ms"`, `"90s"`, `"10m"`, `"1h"`, `"2d"`. Sizes are bytes, or a
text with a unit: `"64KiB"`, `"32MiB"`, `"1GiB"` (powers of 1024) or `"64kB"`, `"32MB"`, `"1GB"` (of 1000).
Paths are absolute or start with `~/`; only a flag may be relative to the current folder.

| key | flag | variable | default | meaning |
|---|---|---|---|---|"""


def session_states() -> str:
    """The states of a session and what moves it from one to another, as a drawing and as a table."""
    resumed = [state for state in State if TABLE[state].get(Act.ATTACH_BEGINS)]
    moves = [
        (state, after, act)
        for state in State
        for act, to in TABLE[state].items()
        for after in ([to] if to is not None else resumed)
    ]
    drawn = [f"    {state} --> {after}: {act}" for state, after, act in moves if after is not state]
    lines = [
        "# The states of a session",
        "",
        "<!-- Made by `python -m tools.pages` from `TABLE` in src/legation/host/session.py; edit that. -->",
        "",
        "Every session of a host, and so of a server, moves by this table and by nothing else.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *drawn,
        "```",
        "",
        "| state | on the wire | |",
        "|---|---|---|",
        *(f"| {state} | `{state.status}` | {state.meaning} |" for state in State),
        "",
        "| what happens | |",
        "|---|---|",
        *(f"| {act} | {act.meaning} |" for act in Act),
        "",
        f"| state | {' | '.join(Act)} |",
        f"|---|{'---|' * len(Act)}",
        *(f"| {state} | {' | '.join(_cell(state, act) for act in Act)} |" for state in State),
        "",
        "A dash: that cannot happen; where it does all the same it is refused, with `legation/conflict`, and logged.",
        "",
    ]
    return "\n".join(lines)


def _cell(state: State, act: Act) -> str:
    if act not in TABLE[state]:
        return "-"
    return TABLE[state][act] or "as before"


def run_states() -> str:
    """The states of a run and what moves it, its names in seed 004's successor, and the classes of failures."""
    moves = [
        (state, after, act)
        for state in states.RunState
        for act, to in states.TABLE[state].items()
        for after in ([to] if to is not None else sorted(states.TERMINAL))
    ]
    lines = [
        "# The states of a run",
        "",
        "<!-- Made by `python -m tools.pages` from src/legation/runs/states.py; edit that. -->",
        "",
        "Every run moves by this table and by nothing else, and only whoever holds its lease moves it.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    {state} --> {after}: {act}" for state, after, act in moves),
        "```",
        "",
        "| state | `status` | |",
        "|---|---|---|",
        *(f"| {state} | `{state.status}` | {state.meaning} |" for state in states.RunState),
        *(f"| {state} | `{name}` | {fact} |" for (state, fact), name in states.REFINED.items()),
        "",
        "| what happens | |",
        "|---|---|",
        *(f"| {act} | {act.meaning} |" for act in states.RunAct),
        "",
        f"| state | {' | '.join(states.RunAct)} |",
        f"|---|{'---|' * len(states.RunAct)}",
        *(
            f"| {state} | {' | '.join(_run_cell(state, act) for act in states.RunAct)} |"
            for state in states.RunState
        ),
        "",
        "A dash: that cannot happen, and is refused with `legation/conflict`.",
        "",
        "## Classes of failures",
        "",
        "A run that failed has exactly one. A step that failed for a class that is tried again is repeated a few times before the",
        "run fails; nothing is repeated that may have had an effect.",
        "",
        "| class | customers are told | tried again | |",
        "|---|---|---|---|",
        *(
            f"| `{each}` | `{each.public}` | {'yes' if each.retries else 'no'} | {each.meaning} |"
            for each in states.ErrorClass
        ),
        "",
    ]
    return "\n".join(lines)


def _run_cell(state: states.RunState, act: states.RunAct) -> str:
    if act not in states.TABLE[state]:
        return "-"
    return states.TABLE[state][act] or "its outcome"


def main() -> None:
    check = "--check" in sys.argv
    for name, text in pages().items():
        page = PAGES / name
        if not check:
            page.write_text(text)
        elif not page.is_file() or page.read_text() != text:
            sys.exit(f"docs/reference/{name} is not what the code says: run `./dev check --fix`")
    committed, contract = json.loads(CONTRACT.read_text()), events.contract()
    if not check and committed["version"] != contract["version"]:
        CONTRACT.write_text(json.dumps(contract, indent=2) + "\n")


if __name__ == "__main__":
    main()
