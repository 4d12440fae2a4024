"""Lists in docstrings, from the second line on: heads, and below each, indented, the tests that show it.

A test is named as `folder/test_module: test_name`.
"""

import importlib
import re


def listed(text: str | None) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    tests: list[tuple[str, str]] = []
    for line in (text or "").splitlines()[1:]:
        if test := re.fullmatch(r"    ((?:\w+/)+\w+): (test_\w+)", line):
            tests.append((f"tests.{test[1].replace('/', '.')}", test[2]))
        elif head := re.match(r"([^\s:][^:]*): \S", line):
            tests = found.setdefault(head[1], [])
    return found


def missing(found: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Heads without a test, and tests that do not exist."""
    empty = [head for head, tests in found.items() if not tests]
    named = {test for tests in found.values() for test in tests}
    absent = [
        f"{module}: {test}" for module, test in named if not hasattr(importlib.import_module(module), test)
    ]
    return [*empty, *absent]
