"""Globs for names are Go's `filepath.Match`, to the letter; for values they go further."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.approvals.policy.automaton import Automaton
from legation.approvals.policy.patterns import BadGlob, Style, glob_pattern, go_glob, literal_prefix
from legation.approvals.policy.rules import specificity


class _GoError(Exception):
    pass


def go_match(pattern: str, name: str) -> bool:
    """Go's algorithm, step for step: chunks between stars, each at the first place where it fits."""
    while pattern:
        star = pattern.startswith("*")
        pattern = pattern.lstrip("*")
        end, inside = 0, False
        while end < len(pattern) and (inside or pattern[end] != "*"):
            if pattern[end] == "\\":
                end += 1
            elif pattern[end] == "[":
                inside = True
            elif pattern[end] == "]":
                inside = False
            end += 1
        chunk, pattern = pattern[:end], pattern[end:]
        if star and not chunk:
            return "/" not in name
        rest = _chunk(chunk, name)
        if rest is not None and (not rest or pattern):
            name = rest
            continue
        if star:
            for skipped in range(len(name)):
                if name[skipped] == "/":
                    break
                rest = _chunk(chunk, name[skipped + 1 :])
                if rest is not None and (pattern or not rest):
                    name = rest
                    break
            else:
                return False
            if rest is not None and (pattern or not rest):
                continue
        return False
    return not name


def _chunk(chunk: str, text: str) -> str | None:
    while chunk:
        if not text:
            return None
        char = text[0]
        if chunk[0] == "[":
            chunk = chunk[1:]
            negated = chunk.startswith("^")
            chunk = chunk[negated:]
            held, count = False, 0
            while not (chunk.startswith("]") and count):
                low, chunk = _escaped(chunk)
                high = low
                if chunk.startswith("-"):
                    high, chunk = _escaped(chunk[1:])
                held = held or low <= char <= high
                count += 1
            chunk = chunk[1:]
            if held == negated:
                return None
        elif chunk[0] == "?":
            if char == "/":
                return None
            chunk = chunk[1:]
        else:
            if chunk[0] == "\\":
                chunk = chunk[1:]
            if chunk[0] != char:
                return None
            chunk = chunk[1:]
        text = text[1:]
    return text


def _escaped(chunk: str) -> tuple[str, str]:
    if not chunk or chunk[0] in "-]":
        raise _GoError
    chunk = chunk.removeprefix("\\")
    if not chunk:
        raise _GoError
    return chunk[0], chunk[1:]


PARTS = st.sampled_from(["a", "b", "/", ".", "*", "**", "?", "[ab]", "[^a]", "[a-c]", r"\*", r"\a", "[b-a]"])


@given(st.lists(PARTS, max_size=7).map("".join), st.text("ab/.*", max_size=8))
def test_names_match_as_in_go(pattern: str, name: str) -> None:
    assert bool(go_glob(pattern).fullmatch(name)) == go_match(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("filesystem.*", "filesystem.read_file", True),
        ("*.read_*", "filesystem.read_file", True),
        ("*", "a.b.c", True),
        ("*", "a/b", False),
        ("a/*", "a/b", True),
        ("read", "spreadsheet.read", False),
        ("gmail.?end", "gmail.send", True),
        ("[^g]*", "gmail.send", False),
        (r"a\*b", "a*b", True),
        (r"a\*b", "axb", False),
        ("Read", "read", False),
        ("", "", True),
    ],
)
def test_names_by_example(pattern: str, name: str, expected: bool) -> None:
    assert bool(go_glob(pattern).fullmatch(name)) is expected


@pytest.mark.parametrize("pattern", ["[", "[]", "[a", "[-a]", "[a-]", "[^]", "a\\", "[a\\", "[]a]"])
def test_malformed_globs_are_refused(pattern: str) -> None:
    with pytest.raises(BadGlob):
        go_glob(pattern)
    with pytest.raises(BadGlob):
        glob_pattern(pattern, "path")


@pytest.mark.parametrize(
    ("style", "pattern", "text", "expected"),
    [
        ("path", "**/.env", "/a/b/.env", True),
        ("path", "**/.env", ".env", True),
        ("path", "**/.env", "/a/b.env", False),
        ("path", "**/.ssh/**", "/home/you/.ssh/id", True),
        ("path", "/a/*/c", "/a/b/c", True),
        ("path", "/a/*/c", "/a/b/x/c", False),
        ("path", "/a/**/c", "/a/c", True),
        ("path", "/a/**/c", "/a/b/x/c", True),
        ("path", "/a/**", "/a-evil/x", False),
        ("path", "**/*.pem", "/x/\n/k.pem", True),
        ("url", "https://*.example.com/**", "https://api.example.com/x/y", True),
        ("url", "https://*.example.com/**", "https://evil.org/.example.com/", False),
        ("url", "https://*.example.com/**", "https://evil.org?.example.com/", False),
        ("url", "https://*.example.com/**", "https://evil.org#.example.com/", False),
        ("url", "https://*.example.com/**", "https://a@evil.org/.example.com/", False),
        ("line", "git *", "git add src/a.py", True),
        ("line", "git *", "git", True),
        ("line", "git *", "github x", False),
        ("line", "git*", "github x", True),
        ("line", "* --force", "git push --force", True),
    ],
)
def test_values_by_example(style: Style, pattern: str, text: str, expected: bool) -> None:
    assert Automaton(glob_pattern(pattern, style)).matches(text) is expected


def test_more_specific_agents_come_first() -> None:
    globs = ["*", "c*", "claude-*", "claude-work-1", "?", "claude-work-*"]
    in_order = sorted(globs, key=specificity)
    assert in_order == ["claude-work-1", "claude-work-*", "claude-*", "c*", "?", "*"]
    assert literal_prefix(r"a\*b*") == "a*b"
