"""A change of a file as one hunk of a unified diff, in time linear in its size.

Not the smallest diff there is: finding that is quadratic, and agents send what they like.
"""

from typing import Final

CONTEXT: Final = 3


def unified(path: str, old: str | None, new: str) -> str:
    before, after = _lines(old or ""), _lines(new)
    same_start = _common(before, after)
    same_end = _common(before[same_start:][::-1], after[same_start:][::-1])
    start = max(0, same_start - CONTEXT)
    tail = min(same_end, CONTEXT)
    gone = before[same_start : len(before) - same_end]
    come = after[same_start : len(after) - same_end]
    lead = before[start:same_start]
    rest = before[len(before) - same_end : len(before) - same_end + tail]
    if not gone and not come:
        return ""
    lines = [
        f"--- {'/dev/null' if old is None else path}\n",
        f"+++ {path}\n",
        f"@@ -{_span(start, len(lead + gone + rest))} +{_span(start, len(lead + come + rest))} @@\n",
        *(_line(" ", line) for line in lead),
        *(_line("-", line) for line in gone),
        *(_line("+", line) for line in come),
        *(_line(" ", line) for line in rest),
    ]
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Ended by line feeds alone: `splitlines` knows other ends, which no diff has."""
    *whole, last = text.split("\n")
    return [*(f"{line}\n" for line in whole), *([last] if last else [])]


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _span(start: int, length: int) -> str:
    """Lines are counted from 1; an empty span names the line before it."""
    return f"{start + 1 if length else start},{length}"


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
