"""Write the reference pages that come from the code: `python docs/generate.py`, or `./dev check --fix`.

With `--check` nothing is written: it fails where a page is not what the code says.
"""

import sys
from pathlib import Path

from legation import errors, settings
from legation.agents.rehearsal import steps
from legation.host.session import TABLE, Act, State
from legation.wire import reference

PAGES = Path(__file__).parent / "reference"


def pages() -> dict[str, str]:
    return {
        "errors.md": errors.reference(),
        "settings.md": settings.reference(),
        "events.md": reference.page(),
        "rehearsal.md": steps.page(),
        "session-states.md": session_states(),
    }


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
        "<!-- Made by `python docs/generate.py` from `TABLE` in src/legation/host/session.py; edit that. -->",
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


def main() -> None:
    for name, text in pages().items():
        page = PAGES / name
        if "--check" not in sys.argv:
            page.write_text(text)
        elif not page.is_file() or page.read_text() != text:
            sys.exit(f"docs/reference/{name} is not what the code says: run `./dev check --fix`")


if __name__ == "__main__":
    main()
