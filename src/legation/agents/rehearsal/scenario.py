"""A scenario file: the same steps as a script, for prompts that are none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legation.agents.rehearsal.script import Script, ScriptError, parse
from legation.agents.rehearsal.steps import STEPS

KEYS = ("steps", "turns", "pace", "require_auth", "early")


class ScenarioError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Scenario:
    turns: tuple[Script, ...] = ()
    pace: float = 0.0
    require_auth: bool = False
    early: bool = False

    def script(self, prompt: int) -> Script | None:
        """What the nth prompt of a session plays; the last turn is played ever after."""
        return self.turns[min(prompt, len(self.turns)) - 1] if self.turns else None


def load(path: Path) -> Scenario:
    try:
        fields = _decode(path)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"cannot read scenario {path}: {error}") from error
    if unknown := sorted(set(fields) - set(KEYS)):
        raise ScenarioError(
            f"cannot use scenario {path}: {', '.join(unknown)} unknown; use {', '.join(KEYS)}"
        )
    turns = fields.get("turns", [fields["steps"]] if "steps" in fields else [])
    pace = fields.get("pace", 0.0)
    if not isinstance(turns, list) or not isinstance(pace, (int, float)):
        raise ScenarioError(f"cannot use scenario {path}: steps and turns are lists, pace is a number")
    return Scenario(
        turns=tuple(_turn(path, turn) for turn in turns),
        pace=float(pace),
        require_auth=fields.get("require_auth") is True,
        early=fields.get("early") is True,
    )


def _decode(path: Path) -> Mapping[str, object]:
    text = path.read_text()
    if path.suffix == ".toml":
        import tomllib  # only a scenario in TOML needs it

        return tomllib.loads(text)
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the file holds no object")
    return fields


def _turn(path: Path, lines: object) -> Script:
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ScenarioError(f"cannot use scenario {path}: a turn is a list of lines")
    try:
        return parse(lines, STEPS)
    except ScriptError as error:
        raise ScenarioError(f"cannot use scenario {path}: {error}") from error
