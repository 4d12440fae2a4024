"""Changes of files in the patch language of Codex's `apply_patch`, which knows whole lines only."""

from __future__ import annotations


def added_file(path: str, content: str) -> str:
    return _patch(f"*** Add File: {path}", _lines("+", content))


def updated_file(path: str, old: str, new: str) -> str:
    return _patch(f"*** Update File: {path}", ["@@", *_lines("-", old), *_lines("+", new)])


def _patch(head: str, lines: list[str]) -> str:
    return "\n".join(["*** Begin Patch", head, *lines, "*** End Patch", ""])


def _lines(sign: str, text: str) -> list[str]:
    return [sign + line for line in text.removesuffix("\n").split("\n")] if text else []
