import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.wire.universal.items import unified


def patched(old: str, diff: str) -> str:
    """What a reader makes of one hunk, by the book."""
    if not diff:
        return old
    _, _, head, *body = diff.split("\n")[:-1]
    start, length = (int(number) for number in head.split()[1][1:].split(","))
    new: list[str] = []
    gone: list[str] = []
    for place, line in enumerate(body):
        if line.startswith("\\"):
            continue
        bare = place + 1 < len(body) and body[place + 1].startswith("\\")
        text = line[1:] if bare else f"{line[1:]}\n"
        if line[0] in " -":
            gone.append(text)
        if line[0] in " +":
            new.append(text)
    lines = old.split("\n")
    kept = [*(f"{line}\n" for line in lines[:-1]), *([lines[-1]] if lines[-1] else [])]
    first = start - 1 if length else start
    assert kept[first : first + length] == gone
    return "".join([*kept[:first], *new, *kept[first + length :]])


_text = st.text(st.sampled_from("ab\n\r\u2028"), max_size=30)


@given(_text, _text)
def test_a_diff_makes_the_new_text_of_the_old(old: str, new: str) -> None:
    assert patched(old, unified("a.py", old, new)) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("one\ntwo\nthree\nfour\nfive\nsix\n", "one\ntwo\nthree\nFOUR\nfive\nsix\n"),
        ("a\n" * 9, "a\n" * 9 + "b"),
        ("a", "a\n"),
        ("gone\n", ""),
    ],
)
def test_git_applies_it(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "f").write_text(old)
    diff = unified("f", old, new)
    command = ["git", "apply", "-p0", "-"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, input=diff, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f").read_text() == new


def test_a_new_file_comes_from_nowhere() -> None:
    assert unified("f", None, "a\n") == "--- /dev/null\n+++ f\n@@ -0,0 +1,1 @@\n+a\n"
    assert unified("f", "same", "same") == ""
