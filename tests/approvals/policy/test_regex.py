"""The automaton says what `re.fullmatch` says, in linear time, and also for texts with holes."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.approvals.policy.automaton import Automaton, PatternTooLarge
from legation.approvals.policy.conditions import globs
from legation.approvals.policy.patterns import BadRegex, parse_regex
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        r"\d",
        r"\w",
        r"\S",
        "[ab]",
        "[^a]",
        "[a-c1]",
        r"\.",
        r"[\d.]",
        r"\n",
        "é",
        "[]a]",
        "[a-]",
    ]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?"])
PATTERNS = st.recursive(
    st.tuples(ATOMS, REPEATS).map("".join),
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, REPEATS).map(lambda two: f"({two[0]}){two[1]}")
    ),
    max_leaves=6,
)
TEXTS = st.text("ab1.\né ]-", max_size=7)


@given(PATTERNS, TEXTS, st.booleans())
def test_matches_what_re_matches(pattern: str, text: str, any_case: bool) -> None:
    pattern = f"(?i){pattern}" if any_case else pattern
    expected = re.fullmatch(pattern, text, re.DOTALL) is not None
    assert Automaton(parse_regex(pattern)).matches(text) is expected


@given(PATTERNS, TEXTS, TEXTS, TEXTS)
def test_a_hole_is_answered_for_all_that_may_fill_it(
    pattern: str, before: str, filling: str, after: str
) -> None:
    automaton = Automaton(parse_regex(pattern))
    answer = automaton.judge((before, None, after))
    filled = automaton.matches(before + filling + after)
    assert answer is UNKNOWN or (answer is YES) is filled


@given(PATTERNS, st.lists(TEXTS, min_size=3, max_size=4), st.lists(TEXTS, min_size=4, max_size=4))
def test_several_holes_are_answered_for_all_that_may_fill_them(
    pattern: str, texts: list[str], filled: list[str]
) -> None:
    automaton = Automaton(parse_regex(pattern))
    pieces = [piece for text in texts for piece in (text, None)][:-1]
    answer = automaton.judge(pieces)
    holes = iter(filled)
    found = automaton.matches("".join(next(holes) if piece is None else piece for piece in pieces))
    assert answer is UNKNOWN or found == (answer is YES)


@pytest.mark.parametrize(
    ("glob", "pieces", "expected"),
    [
        ("echo *", ("echo ", None), YES),
        ("echo *", ("echo ", None, " x"), YES),
        ("git status", ("git ", None), UNKNOWN),
        ("rm *", ("echo ", None), NO),
        ("rm *", (None, " -rf /"), UNKNOWN),
        ("rm *", ("r", None), UNKNOWN),
        ("*", (None,), YES),
    ],
)
def test_holes_by_example(glob: str, pieces: tuple[str | None, ...], expected: Truth) -> None:
    assert globs([glob], "line").judge(pieces) is expected


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*b", "(.*)*x", "(a|aa)+$"])
def test_no_pattern_is_slow_on_any_text(pattern: str) -> None:
    automaton = Automaton(parse_regex(pattern))
    started = time.process_time()
    assert automaton.matches("a" * 30_000 + "c") is False
    assert time.process_time() - started < 5  # `re` would take longer than the universe has


def test_many_states_are_bounded() -> None:
    """A pattern whose deterministic form has 2^18 states, on a text that visits new ones all the time."""
    automaton = Automaton(parse_regex("(a|b)*a(a|b){18}"))
    text = "".join("ab"[(number * number // 7) % 2] for number in range(4000))
    expected = re.fullmatch("[ab]*a[ab]{18}", text) is not None
    assert automaton.matches(text) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "a**",
        "*a",
        "a{2,1}",
        "a{x}",
        r"(a)\1",
        "(?=a)b",
        "(?<=a)b",
        "(?!a)",
        r"\bword",
        "a^b",
        "a$b",
        "a\\",
        "(?i:a)",
        "[b-a]",
        r"\xZZ",
        "(?P<n",
        "a++",
    ],
)
def test_what_cannot_be_done_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(BadRegex):
        parse_regex(pattern)


def test_a_pattern_that_is_too_large_is_refused() -> None:
    with pytest.raises(PatternTooLarge):
        Automaton(parse_regex("(a{50}){50}"))


def test_anchors_at_the_ends_say_nothing_new() -> None:
    automaton = Automaton(parse_regex("^git .*$"))
    assert automaton.matches("git status")
    assert not automaton.matches("x git status")
    assert not automaton.matches("git")
    assert Automaton(parse_regex(r"a\$")).matches("a$")


def test_a_text_beyond_the_bound_is_not_judged() -> None:
    assert globs(["*"], "line").judge(("a" * 40_000,)) is UNKNOWN
