"""Words of a state machine: its states and what moves it, each with its meaning. The reference pages are drawn from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class StateWord(StrEnum):
    """State. `status` is its name on the wire."""

    status: str
    meaning: str

    def __new__(cls, name: str, status: str, meaning: str) -> Self:
        state = str.__new__(cls, name)
        state._value_, state.status, state.meaning = name, status, meaning
        return state


class ActWord(StrEnum):
    """Act that moves it from one state to another."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        act = str.__new__(cls, name)
        act._value_, act.meaning = name, meaning
        return act
