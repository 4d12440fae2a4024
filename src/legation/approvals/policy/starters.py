"""Policies to begin with, as files to learn from."""

from __future__ import annotations

from importlib import resources
from typing import Final, NamedTuple

from legation.approvals.policy.problems import unknown
from legation.errors import NotFound

_FOLDER: Final = resources.files("legation.approvals.policy") / "starters"
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
