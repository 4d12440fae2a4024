"""Patterns as automata: linear in the text, whatever the pattern and whoever wrote the text.

`re` backtracks, so that one crafted argument can hold the door for hours; here every character of the text is
looked at once. A text may also have holes, where a shell will put something that nobody knows yet; then the
answer is yes or no only if it is the same for everything that could be put there.

States are built when a text first needs them, and kept up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth, truth

MAX_NODES: Final = 1000  # of one pattern, its repetitions written out
MAX_TEXT: Final = 32 * 1024  # characters; a longer text is not judged
_KEPT_STATES: Final = 512
_KEPT_MOVES: Final = 512  # of one state

Pieces: TypeAlias = Sequence[str | None]
"""A text with holes: None stands for any characters at all."""


class PatternTooLarge(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set: ranges, or classes such as digits; or out of all others."""

    ranges: tuple[tuple[str, str], ...] = ()
    classes: tuple[tuple[str, bool], ...] = ()  # one of "dws", and whether it is meant
    negated: bool = False
    any_case: bool = False

    def holds(self, char: str) -> bool:
        found = self._lists(char)
        if self.any_case and not found:
            found = self._lists(char.lower()) or self._lists(char.upper())
        return found != self.negated

    def _lists(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) or any(
            _is_of_class(char, name) == meant for name, meant in self.classes
        )


def _is_of_class(char: str, name: str) -> bool:
    if name == "d":
        return char.isdecimal()
    return char.isspace() if name == "s" else char.isalnum() or char == "_"


@dataclass(frozen=True, slots=True)
class Then:
    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Either:
    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Pattern
    least: int = 0
    most: int | None = None


Pattern: TypeAlias = Chars | Then | Either | Repeat

ANY: Final = Chars(negated=True)
ANYTHING: Final = Repeat(ANY)


def literal(text: str, *, any_case: bool = False) -> Then:
    return Then(tuple(Chars(((char, char),), any_case=any_case) for char in text))


class _State:
    __slots__ = ("accepts", "forever", "moves", "nodes")

    def __init__(self, nodes: frozenset[int], accepts: bool, forever: bool) -> None:
        self.nodes, self.accepts, self.forever = nodes, accepts, forever
        self.moves: dict[str, _State] = {}


class Automaton:
    def __init__(self, pattern: Pattern) -> None:
        self._edges: list[tuple[Chars, int] | None] = []
        self._jumps: list[list[int]] = []
        self._end = self._node()
        first = self._build(pattern, self._end)
        self._forever = {node for node in range(len(self._edges)) if self._takes_anything(node)}
        self._states: dict[frozenset[int], _State] = {}
        self._start = self._state(self._closed((first,)))

    def matches(self, text: str) -> bool:
        """Whether the whole text fits; at most MAX_TEXT of it."""
        return self._run(self._start, text).accepts

    def judge(self, pieces: Pieces) -> Truth:
        if len(pieces) == 1 and pieces[0] is not None:
            text = pieces[0]
            return truth(self.matches(text)) if len(text) <= MAX_TEXT else UNKNOWN
        if sum(len(piece) for piece in pieces if piece) > MAX_TEXT:
            return UNKNOWN
        state, is_certain = self._start, True
        for piece in pieces:
            if piece is None:
                if state.forever and is_certain:
                    return YES
                # From here on it is where the text may have led: `$A -rf $B` may be a `git`, and may be an `rm`.
                state, is_certain = self._state(self._reachable(state.nodes)), False
            else:
                state = self._run(state, piece)
        return UNKNOWN if state.accepts else NO

    def _run(self, state: _State, text: str) -> _State:
        for char in text:
            state = state.moves.get(char) or self._step(state, char)
            if not state.nodes:
                break
        return state

    def _step(self, state: _State, char: str) -> _State:
        edges = (self._edges[node] for node in state.nodes)
        after = self._state(self._closed(edge[1] for edge in edges if edge and edge[0].holds(char)))
        if len(state.moves) < _KEPT_MOVES:
            state.moves[char] = after
        return after

    def _state(self, nodes: frozenset[int]) -> _State:
        state = self._states.get(nodes)
        if state is None:
            state = _State(nodes, self._end in nodes, not self._forever.isdisjoint(nodes))
            if len(self._states) < _KEPT_STATES:
                self._states[nodes] = state
        return state

    def _closed(self, nodes: Iterable[int]) -> frozenset[int]:
        """These, and what is reached from them without a character."""
        found: set[int] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self._jumps[node]
        return frozenset(found)

    def _reachable(self, nodes: frozenset[int]) -> frozenset[int]:
        """These, and what is reached from them by any characters."""
        found: set[int] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += self._jumps[node]
                if edge := self._edges[node]:
                    waiting.append(edge[1])
        return frozenset(found)

    def _takes_anything(self, node: int) -> bool:
        """It takes every character, is back where it was, and may end there: whatever comes, it fits."""
        edge = self._edges[node]
        return (
            edge is not None
            and edge[0] == ANY
            and node in (after := self._closed((edge[1],)))
            and self._end in after
        )

    def _node(self, edge: tuple[Chars, int] | None = None) -> int:
        if len(self._edges) > MAX_NODES:
            raise PatternTooLarge
        self._edges.append(edge)
        self._jumps.append([])
        return len(self._edges) - 1

    def _build(self, pattern: Pattern, after: int) -> int:
        """The node where the pattern begins, if `after` is where it ends."""
        match pattern:
            case Chars():
                return self._node((pattern, after))
            case Then(items):
                for item in reversed(items):
                    after = self._build(item, after)
                return after
            case Either(items):
                fork = self._node()
                self._jumps[fork] = [self._build(item, after) for item in items]
                return fork
            case Repeat(item, least, most):
                return self._build_repeat(item, least, most, after)

    def _build_repeat(self, item: Pattern, least: int, most: int | None, after: int) -> int:
        if most is None:
            loop = self._node()
            self._jumps[loop] = [self._build(item, loop), after]
            after = loop
        else:
            end = after
            for _ in range(most - least):
                fork = self._node()
                self._jumps[fork] = [self._build(item, after), end]
                after = fork
        for _ in range(least):
            after = self._build(item, after)
        return after
