"""Abilities of this Amp, read from its own help: versions come daily, and options come and go."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from legation.errors import AgentError, InvalidParams
from legation.wire.acp.updates import ConfigOption, SelectChoice, SelectOption

MODEL: Final = "model"  # what its modes choose
DEFAULT: Final = "default"  # what Amp chooses itself

EXECUTE: Final = "--execute"
STREAM: Final = "--stream-json"
THINKING: Final = "--stream-json-thinking"
INPUT: Final = "--stream-json-input"
SETTINGS: Final = "--settings-file"
PLUGIN_WAIT: Final = "--plugin-ready-timeout"
MODE: Final = "--mode"
EXECUTOR: Final = "--executor"
# What a program without a screen has no use for, and nobody else's way to its terminal.
QUIET: Final = (
    "--no-ide",
    "--no-notifications",
    "--no-color",
    "--no-remote-control-terminal",
    "--no-archive-after-execute",
)

_OPTION: Final = re.compile(r"^ +(-{1,2}\w[\w-]*(?:, -{1,2}\w[\w-]*)*)", re.MULTILINE)
_COMMAND: Final = re.compile(r"^( {2,})([a-z][\w-]*)(?=  |$)", re.MULTILINE)
_MODES: Final = re.compile(r"--mode <\w+>\s+Set the agent mode \(([^)]+)\)", re.DOTALL)
_WORD: Final = re.compile(r"[a-z][\w-]*")
_UNKNOWN: Final = re.compile(r"unknown option '(-{1,2}[\w-]+)")


@dataclass(frozen=True, slots=True)
class Flags:
    """Options, commands and modes that its help lists."""

    options: frozenset[str]
    commands: frozenset[str]
    modes: tuple[str, ...] = ()

    def has(self, option: str) -> bool:
        return option in self.options

    @property
    def has_plugins(self) -> bool:
        return "plugins" in self.commands

    @property
    def has_permissions(self) -> bool:
        return "permissions" in self.commands and self.has(SETTINGS)

    @property
    def can_continue(self) -> bool:
        return "continue" in self.commands

    def without(self, option: str) -> Flags:
        return replace(self, options=self.options - {option})


def read_flags(text: str) -> Flags:
    options = {name for found in _OPTION.findall(text) for name in found.split(", ")}
    if EXECUTE not in options and "-x" not in options:
        raise AgentError(
            "cannot use this program as Amp: its help names no --execute; check what it is, or update it"
        )
    commands = {name for _, name in _COMMAND.findall(text)}
    return Flags(frozenset(options), frozenset(commands), _modes(text))


def refused_option(complaint: str) -> str | None:
    """The option that it would not take, though its help lists it."""
    found = _UNKNOWN.search(complaint)
    return found[1] if found else None


def _modes(text: str) -> tuple[str, ...]:
    """`low, medium, high, ultra, or a plugin mode by key or label, …`"""
    found = _MODES.search(text)
    words = [word.strip() for word in found[1].partition(" or ")[0].split(",")] if found else []
    return tuple(word for word in words if _WORD.fullmatch(word))


# What can be chosen in a session: Amp's modes choose its model, among other things, and nothing of what it may do.


def config_options(flags: Flags, mode: str) -> tuple[ConfigOption, ...]:
    if not flags.modes:
        return ()
    choices = tuple(SelectChoice(name=each.capitalize(), value=each) for each in (DEFAULT, *flags.modes))
    return (SelectOption(id=MODEL, name="Mode", category="model", current_value=mode, options=choices),)


def chosen_mode(flags: Flags, config_id: str, value: str | bool) -> str:
    if config_id != MODEL or value not in (DEFAULT, *flags.modes):
        raise InvalidParams(
            f"cannot set {config_id!r} of Amp to {value!r}: choose from what the session offers"
        )
    return str(value)
