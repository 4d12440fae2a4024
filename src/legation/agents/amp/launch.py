"""How the process of a turn is started: with all that this Amp can take, or with what is left of it.

INV-L1  Neither the prompt nor a secret is in the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from legation.agents.amp import options as option
from legation.agents.amp.options import Flags
from legation.agents.amp.permissions import VARIABLE
from legation.proc import Command

PLUGIN_SECONDS: Final = "30"  # Amp's own time to get its plugins ready before it begins
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "AMP_REMOTE_CONTROL_TERMINAL": "0",  # nobody else's way in
    "NO_COLOR": "1",
    "TERM": "dumb",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """`thread` is the one to go on with; `mode` one of Amp's own, None for its default."""

    cwd: str
    thread: str | None
    mode: str | None
    settings: Path
    door: Path


def command_for(base: Command, launch: Launch, flags: Flags) -> Command:
    going_on = ("threads", "continue", launch.thread) if launch.thread else ()
    argv = (*base.argv, *going_on, *_options(launch, flags), "-x")
    env = {**base.env, **_ENVIRONMENT, VARIABLE: str(launch.door)}
    return replace(base, argv=argv, cwd=Path(launch.cwd), env=env)


def takes_json(flags: Flags) -> bool:
    return flags.has(option.STREAM) and flags.has(option.INPUT)


def _options(launch: Launch, flags: Flags) -> tuple[str, ...]:
    wanted: list[tuple[str, ...]] = [
        (option.SETTINGS, str(launch.settings)),
        (option.EXECUTOR, "local"),
        *((each,) for each in option.QUIET),
    ]
    if flags.has_plugins:
        wanted.append((option.PLUGIN_WAIT, PLUGIN_SECONDS))
    if launch.mode is not None:
        wanted.append((option.MODE, launch.mode))
    if flags.has(option.STREAM):
        wanted += [(option.STREAM,), (option.THINKING,), (option.INPUT,)]
    return tuple(word for words in wanted if flags.has(words[0]) for word in words)
