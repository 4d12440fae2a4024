"""Patterns as automata: linear in the text, whatever the pattern and whoever wrote the text.

`re` backtracks, so that one crafted argument can hold the door for hours; here every character of the text is
looked at once. A text may also have holes, where a shell will put something that nobody knows yet; then the
answer is yes or no only if it is the same for everything that could be put there.

Where a text may have led is one number, a bit for each place in the pattern, and a character moves all bits at once.
Such states are kept up to a bound: most patterns have few, and a step is then one look into a dictionary. Of those that
have many (`.*a.{400}`) none is kept, and every character costs a step in full.

INV-P12 Linear is not enough where there are many rules and long texts, so all steps of a decision come out of one
        `Budget`. What they cost depends on the pattern and the text alone, not on what was kept or on the clock: the
        same call is always decided alike. Beyond it everything is unknown (INV-P1): never an allow, never past a deny.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth, truth

MAX_NODES: Final = 1000  # of one pattern, its repetitions written out
MAX_TEXT: Final = 32 * 1024  # characters; a longer text is not judged
MAX_STEPS: Final = 600_000  # of one decision: some 45 ms of the processor, for which the loop may wait
_KEPT_STATES: Final = 512
_KEPT_MOVES: Final = 32 * 1024
_KEPT_CHARS: Final = 4096
_FEW: Final = 9  # nodes of a pattern that cannot have more states than are kept
_EXPLORED: Final = 4096  # moves that are tried when a pattern is read: a millisecond or two
_STEP: Final = 5  # steps that a character costs where no states are kept; each way of going on costs one more
_SHIFTS: Final = 4  # ways of going on that many places of a pattern share
_USUAL_CHARS: Final = 64  # of a text that are not ASCII,
_UNUSUAL: Final = 16  # and what each more of them costs, in steps

Pieces: TypeAlias = Sequence[str | None]
"""A text with holes: None stands for any characters at all."""


class PatternTooLarge(Exception):
    pass


class Budget(msgspec.Struct, eq=False):
    """The steps of one decision: of all rules, values and paths together. One step is some 0.07 µs."""

    left: int = MAX_STEPS
    by: str | None = None  # the rule that used it up

    @property
    def is_spent(self) -> bool:
        return self.left < 0

    def spend(self, steps: int) -> None:
        self.left -= steps

    @property
    def why(self) -> str:
        return f"rule {self.by} used up the {MAX_STEPS} steps that one decision may take"


class Chars(msgspec.Struct, frozen=True, gc=False):
    """A character out of a set: ranges, or classes such as digits; or out of all others."""

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
        # Loops: for a new policy of ten thousand rules this is called three million times.
        for low, high in self.ranges:
            if low <= char <= high:
                return True
        for name, meant in self.classes:  # noqa: SIM110
            if _is_of_class(char, name) == meant:
                return True
        return False


def _is_of_class(char: str, name: str) -> bool:
    if name == "d":
        return char.isdecimal()
    return char.isspace() if name == "s" else char.isalnum() or char == "_"


class Then(msgspec.Struct, frozen=True):
    items: tuple[Pattern, ...]


class Either(msgspec.Struct, frozen=True):
    items: tuple[Pattern, ...]


class Repetition(msgspec.Struct, frozen=True):
    item: Pattern
    least: int = 0
    most: int | None = None


Pattern: TypeAlias = Chars | Then | Either | Repetition

ANY: Final = Chars(negated=True)
ANYTHING: Final = Repetition(ANY)


def literal(text: str, *, any_case: bool = False) -> Then:
    return Then(tuple(one(char, any_case) for char in text))


@lru_cache(maxsize=4096)
def one(char: str, any_case: bool) -> Chars:
    """Character by itself, shared: what is made of ten thousand rules is gone through at every full collection, at once."""
    return Chars(((char, char),), any_case=any_case)


class _State:
    __slots__ = ("accepts", "ends", "forever", "moves", "places", "reached")

    def __init__(self, places: int, forever: int) -> None:
        self.places = places
        self.accepts = bool(places & _END)
        self.forever = bool(places & forever)
        self.ends = not places or (self.forever and self.accepts)  # whatever comes, the answer is known
        self.moves: dict[str, _State] = {}
        self.reached: _State | None = None  # by any characters


_END: Final = 1  # the first node is the end, and its bit the lowest


class Automaton:
    def __init__(self, pattern: Pattern) -> None:
        self._made: list[tuple[Chars, int] | None] = []
        self._jumps: list[list[int]] = []
        self._node()  # the end
        first = self._build(pattern, 0)
        # No lists: a tuple of what has no references itself is not looked through for garbage.
        self._edges = tuple(self._made)
        self._after = tuple([_END if edge is None else self._closed(edge[1]) for edge in self._edges])
        self._forever = sum(1 << node for node in range(len(self._edges)) if self._takes_anything(node))
        self._connect()
        self._taken: dict[str, int] = {}
        self._states: dict[int, _State] = {}
        self._kept = 0  # moves
        self._start = self._state(self._closed(first))
        del self._jumps, self._made
        self._is_small = self._explore()
        self._price = 1 if self._is_small else _STEP + len(self._shifts) + len(self._gates)

    def matches(self, text: str) -> bool:
        """Tell whether the whole text fits; at most MAX_TEXT of it."""
        return self._walk(self._start, text)[0].accepts

    def judge(self, pieces: Pieces, budget: Budget | None = None) -> Truth:
        budget = budget or Budget()
        if len(pieces) == 1 and pieces[0] is not None:
            text = pieces[0]
            if len(text) > MAX_TEXT:
                return UNKNOWN
            state = self._run(self._start, text, budget)
            return UNKNOWN if state is None else truth(state.accepts)
        if sum(len(piece) for piece in pieces if piece) > MAX_TEXT:
            return UNKNOWN
        return self._judge(pieces, budget)

    def _judge(self, pieces: Pieces, budget: Budget) -> Truth:
        after: _State | None = self._start
        is_certain = True
        for piece in pieces:
            if after is None or budget.is_spent:
                return UNKNOWN
            if piece is not None:
                after = self._run(after, piece, budget)
                continue
            if after.forever and is_certain:
                return YES
            # From here on it is where the text may have led: `$A -rf $B` may be a `git`, and may be an `rm`.
            budget.spend(_STEP if self._is_small else _STEP + 2 * len(self._edges))
            after, is_certain = self._reachable(after), False
        return UNKNOWN if after is None or after.accepts else NO

    def _run(self, state: _State, text: str, budget: Budget) -> _State | None:
        """Read a text; None: the budget does not reach for an answer."""
        if len(text) > _USUAL_CHARS and not text.isascii():
            after = self._read(state, text[:_USUAL_CHARS], budget)
            if after is None or after.ends:
                return after
            # Moves of the usual characters are kept already; each other one has to be found out.
            unusual = sum(char > "\x7f" for char in set(text))
            budget.spend(max(0, unusual - _USUAL_CHARS) * (_UNUSUAL + 4 * len(self._sets)))
            state, text = after, text[_USUAL_CHARS:]
        return self._read(state, text, budget)

    def _read(self, state: _State, text: str, budget: Budget) -> _State | None:
        most = max(0, budget.left // self._price)
        state, read = self._walk(state, text if len(text) <= most else text[:most])
        budget.left -= read * self._price
        if len(text) > most and not state.ends:
            budget.left = -1
            return None
        return state

    def _walk(self, state: _State, text: str) -> tuple[_State, int]:
        """Find where it leads, and how much of it was read."""
        if not self._is_small:
            return self._sweep(state, text)
        for at, char in enumerate(text, 1):
            state = state.moves.get(char) or self._step(state, char)
            if state.ends:
                return state, at
        return state, len(text)

    def _sweep(self, state: _State, text: str) -> tuple[_State, int]:
        """Do the same for a pattern of many states: keeping them would cost more than it saves."""
        places = state.places
        for at, char in enumerate(text, 1):
            places = self._moved(places, char)
            if not places:
                return self._state(places), at
        return self._state(places), len(text)

    def _step(self, state: _State, char: str) -> _State:
        after = self._state(self._moved(state.places, char))
        if self._kept >= _KEPT_MOVES:  # begun again, so that nobody can fill it for good
            for each in list(self._states.values()):
                each.moves.clear()
            self._kept = 0
        self._kept += 1
        state.moves[char] = after
        return after

    def _moved(self, places: int, char: str) -> int:
        taken = self._taken.get(char)
        return self._next(places & (self._takers(char) if taken is None else taken))

    def _next(self, held: int) -> int:
        found = 0
        for mask, right, left in self._shifts:
            found |= (held & mask) >> right << left
        for sources, target in self._gates:
            if held & sources:
                found |= target
        return found

    def _takers(self, char: str) -> int:
        """Find the places where the character may come."""
        found = 0
        for chars, places in self._sets:
            if chars.holds(char):
                found |= places
        if len(self._taken) >= _KEPT_CHARS:
            self._taken.clear()
        self._taken[char] = found
        return found

    def _state(self, places: int) -> _State:
        state = self._states.get(places)
        if state is None:
            state = _State(places, self._forever)
            if len(self._states) < _KEPT_STATES:
                self._states[places] = state
        return state

    def _closed(self, first: int) -> int:
        """Find where a character may come next, or the text may end, once it has led here."""
        found, places, waiting = {first}, 0, [first]
        while waiting:
            node = waiting.pop()
            if node == 0 or self._edges[node] is not None:
                places |= 1 << node
            for after in self._jumps[node]:
                if after not in found:
                    found.add(after)
                    waiting.append(after)
        return places

    def _connect(self) -> None:
        """Connect each place to those behind it: by a shift where many go equally far, else by who leads to it."""
        sets: dict[Chars, int] = {}
        lengths: dict[int, int] = {}
        sources: dict[int, int] = {}
        for node, edge in enumerate(self._edges):
            if edge is None:
                continue
            sets[edge[0]] = sets.get(edge[0], 0) | 1 << node
            for after in _bits(self._after[node]):
                lengths[node - after] = lengths.get(node - after, 0) | 1 << node
        shared = sorted(lengths, key=lambda length: (-lengths[length].bit_count(), length))[:_SHIFTS]
        for node, edge in enumerate(self._edges):
            for after in _bits(self._after[node]) if edge is not None else ():
                if node - after not in shared:
                    sources[after] = sources.get(after, 0) | 1 << node
        self._sets = tuple(sets.items())
        self._shifts = tuple((lengths[length], max(0, length), max(0, -length)) for length in shared)
        self._gates = tuple((leading, 1 << after) for after, leading in sources.items())

    def _explore(self) -> bool:
        """Tell whether the states are so few that all are kept, as far as usual characters show."""
        if len(self._edges) <= _FEW:
            return True
        chars = {char for chars, _ in self._sets for pair in chars.ranges for char in pair} | set("0aA_ -/\n")
        takers = {self._takers(char) for char in chars}
        left, found, waiting = _EXPLORED, {self._start.places}, [self._start.places]
        while waiting:
            places = waiting.pop()
            left -= len(takers)
            if left < 0:
                return False
            for taken in takers:
                after = self._next(places & taken)
                if after not in found:
                    found.add(after)
                    waiting.append(after)
            if len(found) > _KEPT_STATES:
                return False
        return True

    def _reachable(self, state: _State) -> _State:
        """Find what is reached from it by any characters, itself too."""
        if state.reached is None:
            found, waiting = state.places, state.places
            while waiting:
                new = 0
                for node in _bits(waiting & ~_END):
                    new |= self._after[node]
                waiting = new & ~found
                found |= new
            state.reached = self._state(found)
        return state.reached

    def _takes_anything(self, node: int) -> bool:
        """Tell whether it takes every character, is back where it was, and may end there: whatever comes, it fits."""
        edge, after = self._edges[node], self._after[node]
        return edge is not None and edge[0] == ANY and bool(after >> node & 1) and bool(after & _END)

    def _node(self, edge: tuple[Chars, int] | None = None) -> int:
        if len(self._made) > MAX_NODES:
            raise PatternTooLarge
        self._made.append(edge)
        self._jumps.append([])
        return len(self._made) - 1

    def _build(self, pattern: Pattern, after: int) -> int:
        """Build the node where the pattern begins, if `after` is where it ends."""
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
            case Repetition(item, least, most):
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


def _bits(places: int) -> Iterator[int]:
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest
