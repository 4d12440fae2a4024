"""The reference page of the rehearsal agent, made from the table of its steps."""

from collections.abc import Iterable
from typing import Final

from legation.agents.rehearsal.script import FIRST_LINE, StepSpec
from legation.agents.rehearsal.steps import SECTIONS

INTRODUCTION: Final = f"""\
# The rehearsal agent

<!-- Made by `python -m tools.pages`; edit the step tables in the code. -->

A real ACP v1 agent in its own process that needs no key and no network. The demo, the tests and
the benchmarks run it: `python -m legation.agents.rehearsal`.

A plain prompt makes it look for a failing test in its working folder (`python -m unittest`), search for
one-line changes, try them in a scratch copy until the tests pass, make that one edit and run the tests
again. Like any agent it asks before each of these that executes or edits: to run the tests, to try the
changes, to edit, to run the tests again. It says so when no test fails, when it knows no fix, and when
you say no.

A prompt whose first line is `{FIRST_LINE}` is a script, one step a line:

```
{FIRST_LINE}
plan look; fix
say Here is what I found.
ask edit hello.txt wrold => world
plan-done 2
```

The whole script is read first: a line that cannot be played is named in a message, with the
nearest step, and the turn ends with stop reason `refusal`. Blank lines and lines that start with
`#` are skipped. A path with spaces goes in double quotes; `\\n`, `\\t` and `\\\\` work in texts.
`repeat N {{`, steps, and a line `}}` play those steps N times.

It keeps to the protocol unless a step says otherwise: it uses only what the client advertised,
stays inside its working folder, and reports every tool call from pending to its end. A `!` after
a step's name (where the table allows it) drops that restraint. After an "always" answer it does
not ask again for that kind of tool in that session while the process lives.

Sessions outlive the process: `session/load` tells all of it again, but for notices, `big` lines
and the other misbehaviour (a flood is told again in full).

## Options

| option | what it does |
|---|---|
| `--scenario FILE` | plays the steps of a TOML or JSON file for every prompt that is no script itself |
| `--state DIR` | where sessions are kept; `$HOME/.rehearsal` unless given |
| `--pace SECONDS` | waits that long between pieces of text |
| `--require-auth` | answers -32000 until the client has authenticated with `rehearsal-login` |
| `--execute` | plays the steps that act on this machine by themselves; see below |
| `--early` | sends two updates before it answers `session/new` |

A scenario file has `steps` (a list of lines) or `turns` (a list of such lists: the first prompt
plays the first, and the last one is played again ever after), and may set `pace`, `require_auth`
and `early`.

## What it may do by itself

Whoever may prompt it decides what it does, so without `--execute` it is no stronger than its client lets it be: it reads
and writes the files that it names through its client alone, and plays no step that is marked *executes* (nor one of more
than 64 KiB); each refusal says so. The one program that it then runs is that of a plain prompt, `python -m unittest` in
its folder, and it asks before each run in every mode, so that whoever may approve decides it. `legation exec` by itself and the demo turn
the rest on, for whoever starts them has a shell; a server does with `rehearsal_executes`.

## Modes

`default` asks before it runs the tests and before the edit, `plan` asks to run them and only says what it would
change, `bypass` does not ask (with `--execute`; without it asks).
They steer the bug fix; a script does what it says in any mode.
"""


def page() -> str:
    return INTRODUCTION + "".join(_section(title, specs) for title, specs in SECTIONS.items())


def _section(title: str, specs: Iterable[StepSpec]) -> str:
    rows = "".join(_row(spec) for spec in specs)
    return f"\n## {title}\n\n| step | what it does |\n|---|---|\n{rows}"


def _row(spec: StepSpec) -> str:
    meaning = spec.meaning
    for name, choices in spec.choices.items():
        meaning += f" {name}: {', '.join(f'`{choice}`' for choice in choices)}."
    if spec.forced:
        meaning += f" `{spec.name}!` {spec.forced}."
    if spec.executes != "never":
        meaning += " *Executes.*" if spec.executes == "always" else f" `{spec.name}!` *executes.*"
    return f"| `{f'{spec.name} {spec.usage}'.strip()}` | {meaning} |\n"
