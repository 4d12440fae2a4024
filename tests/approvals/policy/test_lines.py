"""Lines that agents write: all that they run is seen, or nothing is allowed; with the real parser and a real bash."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.approvals.policy.rules import call, policy
from tests.approvals.policy.shell_lines import EVERYDAY, HOSTILE, WORK, Row
from tests.approvals.policy.test_shell import GLUE, WORDS, covers, shown

from legation.approvals.policy.load import EXAMPLE_FACTS, load_text, starter, starters
from legation.approvals.policy.rules import PolicySet
from legation.approvals.policy.shell.lines import LINES, ShellLines, prepare, prepare_here, program
from legation.approvals.policy.shell.split import ShellLine, split

POLICIES = {"work": load_text(WORK), "careful": load_text(starter("careful").text)}


def verdict(policies: PolicySet, line: str) -> str:
    action = call(command=line, kind="execute")
    return policies.decide(action, prepare_here(action, EXAMPLE_FACTS)).action


def ids(lines: list[str]) -> list[str]:
    return [re.sub(r"\W+", "-", line)[:40] for line in lines]


def test_there_are_two_hundred_lines_of_which_a_third_takes_the_parser() -> None:
    lines = [row.line for row in EVERYDAY] + [line for line, _ in HOSTILE]
    assert len(set(lines)) == len(lines) >= 200
    assert len(EVERYDAY) >= 120
    assert len([line for line in lines if split(line).unreadable]) >= len(lines) // 3


@pytest.mark.parametrize("row", EVERYDAY, ids=ids([row.line for row in EVERYDAY]))
def test_an_everyday_line_is_read_and_decided_as_written_down(row: Row) -> None:
    found = LINES.read(row.line)
    assert found.unreadable is None
    assert sorted(shown(found) or []) == sorted(row.parts)
    assert verdict(POLICIES["work"], row.line) == row.verdict
    assert verdict(POLICIES["careful"], row.line) == "human_approval"


@pytest.mark.parametrize(("line", "parts"), HOSTILE, ids=ids([line for line, _ in HOSTILE]))
def test_a_hostile_line_is_never_allowed(line: str, parts: list[str] | None) -> None:
    found = LINES.read(line)
    assert (None if found.unreadable else sorted(shown(found) or [])) == (parts and sorted(parts))
    for each in POLICIES.values():
        assert verdict(each, line) != "allow"


# What bash really starts.

# One write for each call: several may run at once.
NOTES = 'printf "%s\\0" "${{0##*/}}" "$@" end-of-call >> "$LOG"\n'
STUB = "#!{shell}\n" + NOTES
PASSING = "#!{shell}\n" + NOTES + 'exec {real} "$@"\n'  # they do what they do as well
REAL = ("env", "xargs", "timeout", "nohup", "nice", "bash", "sh", "setsid", "stdbuf", "find")
FILTERS = (
    "cat",
    "seq",
    "wc",
    "sort",
    "head",
    "tail",
    "tee",
    "grep",
    "nproc",
    "date",
    "basename",
    "cut",
    "tr",
)
RECORDED = [
    "rm",
    "git",
    "ls",
    "evil",
    "gh",
    "pytest",
    "python",
    "python3",
    "node",
    "npm",
    "npx",
    "rg",
    "sed",
    "uniq",
    "jq",
    "diff",
    "comm",
    "paste",
    "tree",
    "stat",
    "which",
    "make",
    "cargo",
    "go",
    "ruff",
    "mypy",
    "pip",
    "curl",
    "apply_patch",
    "nl",
    "uname",
    "mkdir",
    "sleep",
    "zsh",
    "nosuch",
]
FUNCTION_DEPTH = "3"  # or two that call each other in a pipe would fill the machine


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    shell = shutil.which("sh")
    for name in (*RECORDED, *FILTERS):
        real = shutil.which(name) if name in FILTERS else None
        (folder / name).write_text((PASSING if real else STUB).format(shell=shell, real=real))
        (folder / name).chmod(0o755)
    for name in REAL:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def started(line: str, programs: Path, place: Path) -> list[str]:
    """What bash starts for the line, as one text each. All programs that it can find are those of the test."""
    # A log of its own: what an earlier line has left in the background may still write into its.
    folder, log = place / "work", place / f"log-{uuid4()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("file", "a.txt", "a"):
        (folder / name).write_text("x\n")
    log.write_bytes(b"")
    subprocess.run(
        [programs / "bash", "-c", line],
        cwd=folder,
        env={"PATH": str(programs), "LOG": str(log), "HOME": str(folder), "X": "evil x", "LC_ALL": "C.UTF-8", "FUNCNEST": FUNCTION_DEPTH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    calls = log.read_bytes().split(b"end-of-call\0")
    return [b" ".join(each.split(b"\0")[:-1]).decode(errors="replace") for each in calls if each]


def assert_covered(line: str, programs: Path, place: Path) -> list[str]:
    found = LINES.read(line)
    if found.unreadable:
        return []
    calls = started(line, programs, place)
    if any(re.match(r"(?!\w+\+?=|\(\()\S*…", part) for part in shown(found) or []):
        # Nobody knows which program that is, so nobody knows what it starts: what counts is that it is not allowed.
        assert calls == [] or verdict(POLICIES["work"], line) != "allow", line
        return calls
    for each in calls:
        assert covers(found, each), f"{line!r} starts {each!r}, which is not in {shown(found)}"
    return calls


def is_safe_to_run(line: str) -> bool:
    """No program by its path, no file that is not the test's, no loop without an end."""
    dangers = (
        "/bin",
        "/etc",
        "/dev/tcp",
        "/tmp",
        "sudo",
        "..",
        "while !",
        "until",
        "\0",
        "curl",
        "$SHELL",
        "/srv",
        "~",
    )
    return not any(danger in line for danger in dangers)


@pytest.mark.heavy
def test_bash_starts_nothing_but_the_commands_of_everyday_lines(programs: Path, tmp_path: Path) -> None:
    lines = [row.line for row in EVERYDAY if is_safe_to_run(row.line)]
    ran = [line for line in lines if assert_covered(line, programs, tmp_path)]
    assert len(lines) > 130
    assert len(ran) > 100


@pytest.mark.heavy
def test_bash_starts_nothing_but_the_commands_of_hostile_lines(programs: Path, tmp_path: Path) -> None:
    lines = [line for line, _ in HOSTILE if is_safe_to_run(line)]
    ran = [line for line in lines if assert_covered(line, programs, tmp_path)]
    assert len(lines) > 100
    assert len(ran) > 60


@pytest.mark.heavy
def test_no_line_that_starts_a_denied_command_escapes_the_deny(programs: Path, tmp_path: Path) -> None:
    """Under a policy that allows everything else."""
    denying = policy({"action": "deny", "when": {"command": {"glob": "rm *"}}}, {"action": "allow"})
    lines = [line for line, _ in HOSTILE if is_safe_to_run(line)]
    removing = [
        line for line in lines if any(re.match(r"rm\b", each) for each in started(line, programs, tmp_path))
    ]
    assert len(removing) > 60
    assert [line for line in removing if verdict(denying, line) != "deny"] == []


def test_what_bash_starts_is_seen_by_the_test(programs: Path, tmp_path: Path) -> None:
    assert sorted(started("[[ a ]] && git a 'b c'; $X; env rm", programs, tmp_path)) == [
        "evil x",
        "git a b c",
        "rm",
    ]
    assert started("git commit -m \"$(cat <<'E'\na\n\nE\n)\"", programs, tmp_path) == [
        "cat",
        "git commit -m a",
    ]
    assert started("for x in 'a[$(rm y)]'; do echo $((x)); done", programs, tmp_path) == ["rm y"]


FORMS = [
    "[[ ", " ]]", "-v ", " -eq ", " == ", " =~ ", " || ", "case x in ", "x) ", ";;", " esac", "<(", ">(", "<<E\n", "\nE\n",
    "<<'E'\n", "<<-E\n", "a=(", "a[", "]=", "((", "))", "$((", "${x:-", "${x:", "${!", "${a[", "]}", "}", "rm() { ", "git() { ",
    "function ls { ", "; }\n", "'a[$(rm y)]'", "$x", '"$x"', "x=", "for x in ", "read x", "printf -v ", "declare ", "let ",
    "bash -c '", "bash -c \"", "\\\"", "\\`", "<<< ", "$'", "@(", "coproc ", "select x in ", "&> out ", "|& ", "export ",
    "${x@P}", "[ ", " ]", "test ", "\\\n", "1", "i", "+", "=", ",", "?", ":", "E\n", "# ", "$#", "${#x}", "((i++))",
]  # fmt: skip
PIECES = (
    WORDS
    + GLUE
    + FORMS * 2
    + [" "] * 30
    + [line for line, _ in HOSTILE if is_safe_to_run(line) and len(line) < 60]
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A line of the table with pieces put in, taken out and doubled."""
    lines = [row.line for row in EVERYDAY] + [line for line, _ in HOSTILE]
    line = draw(st.sampled_from([line for line in lines if is_safe_to_run(line) and len(line) < 200]))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line)))
        to = draw(st.integers(at, min(len(line), at + 6)))
        line = line[:at] + draw(st.sampled_from(["", *PIECES])) + line[to:]
    return line


def is_safe_to_try(line: str) -> bool:
    """Of what came about by chance: no loop that may not end, no file elsewhere."""
    return (
        is_safe_to_run(line)
        and "while" not in line
        and "~" not in line
        and "for ((" not in line
        and "/" not in line.replace("/dev/null", "")
    )


@pytest.mark.heavy
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(mutated(), st.lists(st.sampled_from(PIECES), min_size=2, max_size=12).map("".join)).filter(
        is_safe_to_try
    )
)
def test_bash_starts_nothing_else_for_any_line(programs: Path, tmp_path: Path, line: str) -> None:
    assert_covered(line, programs, tmp_path)


# The parser, as a program.


def scripted(place: Path, text: str) -> ShellLines:
    """A parser that is a shell script of the test's."""
    script = place / "parser"
    script.write_text(f"#!{shutil.which('sh')}\n{text}\n")
    script.chmod(0o755)
    return ShellLines(lambda: script, time=60)


def counted(place: Path, kept: int = 10_000) -> ShellLines:
    """The real one, and a note of each start."""
    script = place / "parser"
    script.write_text(f'#!{shutil.which("sh")}\necho run >> {place}/runs\nexec {program()} "$@"\n')
    script.chmod(0o755)
    return ShellLines(lambda: script, kept=kept)


def runs(place: Path) -> int:
    return len((place / "runs").read_text().splitlines())


def test_the_parser_is_the_one_that_was_installed_with_legation() -> None:
    found = program()
    assert found is not None
    assert found.name == "shfmt"
    assert os.access(found, os.X_OK)


def test_the_parser_gets_the_line_on_its_input_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATION_SECRET", "key")
    lines = scripted(tmp_path, f'export -p > {tmp_path}/env; echo "$@" > {tmp_path}/argv; pwd >> {tmp_path}/argv\n'
                     f'while read -r l; do echo "$l"; done > {tmp_path}/stdin; exit 1')  # fmt: skip
    assert lines.read("[[ a ]] # --write\n").unreadable
    assert "LEGATION_SECRET" not in (tmp_path / "env").read_text()
    assert "HOME=" not in (tmp_path / "env").read_text()
    assert (tmp_path / "argv").read_text() == "-ln=bash --to-json\n/\n"
    assert (tmp_path / "stdin").read_text() == "[[ a ]] # --write\n"


def test_without_the_parser_lines_are_read_as_far_as_they_can_be() -> None:
    lines = ShellLines(lambda: None)
    assert lines.read("git status && ls") == split("git status && ls")
    assert lines.read("[[ a ]] && ls") == split("[[ a ]] && ls")
    assert lines.read("[[ a ]] && ls").unreadable


@pytest.mark.parametrize(
    "text",
    ["kill -9 $$", "echo '{'", "echo '[]'", "echo 1", "echo '{\"Type\": \"File\", \"Stmts\": 1}'", "exit 3", "",
     "echo '{\"Type\": \"File\", \"Stmts\": [{\"Cmd\": {\"Type\": \"NewClause\"}}]}'",
     "echo '{\"Type\": \"File\", \"Stmts\": [{\"Cmd\": {\"Type\": \"CallExpr\", \"New\": 1}}]}'",
     "echo '{\"Type\": \"File\", \"Stmts\": [{\"New\": true}]}'",
     "echo '{\"Type\": \"File\", \"New\": 1}'",
     "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done"],
    ids=["killed", "no-json", "a-list", "a-number", "no-list", "an-error", "silent", "a-new-kind", "a-new-member",
         "a-new-mark", "a-new-member-of-all", "endless"],
)  # fmt: skip
def test_a_parser_that_says_what_is_not_known_leaves_the_line_unreadable(tmp_path: Path, text: str) -> None:
    found = scripted(tmp_path, text).read("[[ a ]] && ls")
    assert found.unreadable
    assert not found.parts


@pytest.mark.heavy
def test_a_parser_that_hangs_is_ended_and_the_line_is_unreadable(tmp_path: Path) -> None:
    script = tmp_path / "parser"
    script.write_text(f"#!{shutil.which('sh')}\necho $$ > {tmp_path}/pid\nexec {shutil.which('sleep')} 600\n")
    script.chmod(0o755)
    assert ShellLines(lambda: script, time=2).read("[[ a ]]").unreadable
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_line_is_parsed_once(tmp_path: Path) -> None:
    lines = counted(tmp_path)
    first = lines.read("[[ a ]] && ls")
    assert lines.read("[[ a ]] && ls") is first
    assert lines.read("git status") == split("git status")
    assert runs(tmp_path) == 1


def test_only_so_many_characters_of_lines_are_remembered(tmp_path: Path) -> None:
    lines = counted(tmp_path, kept=3_000)
    for number in range(10):
        assert lines.read(f"[[ {number} ]] && ls").parts
    assert lines._size <= 3_000
    assert 0 < len(lines._known) < 10
    lines.read("[[ 9 ]] && ls")
    assert runs(tmp_path) == 10
    lines.read("[[ 0 ]] && ls")
    assert runs(tmp_path) == 11
    assert lines.read(f"[[ {'a' * 5_000} ]]").parts
    assert lines._size <= 3_000


async def test_the_loop_goes_on_while_a_line_is_parsed(tmp_path: Path) -> None:
    """The parser waits for the loop: on it, neither would ever end."""
    os.mkfifo(tmp_path / "gate")
    lines = scripted(tmp_path, f"read -r _ < {tmp_path}/gate; exit 1")
    task = asyncio.create_task(lines.read_off_the_loop("[[ a ]]"))
    turn = asyncio.create_task(asyncio.sleep(0))
    await turn
    assert not task.done()
    await asyncio.to_thread((tmp_path / "gate").write_text, "go\n")
    assert (await task).unreadable


async def test_what_was_read_stands_among_the_facts_and_no_folder_is_resolved_again(tmp_path: Path) -> None:
    line = "[[ -f a ]] && cat a"
    action = call(command=line, kind="execute")
    root = EXAMPLE_FACTS.root("$WORKSPACE")
    facts = await prepare(action, EXAMPLE_FACTS)
    assert facts.line(line).parts
    assert EXAMPLE_FACTS.line(line).unreadable
    assert facts.root("$WORKSPACE") is root
    assert await prepare(call(command="ls", kind="execute"), facts) is facts


@pytest.mark.heavy
def test_a_long_or_nested_line_is_no_error() -> None:
    for line in (
        "[[ a ]];" * 3_000,
        "[[ a ]] && " * 2_000 + "ls",
        "[[ " + "( " * 2_000 + "a" + " )" * 2_000 + " ]]",
        "[[ a ]]; echo " + "$(" * 500 + "ls" + ")" * 500,
        "[[ a ]]; " + "bash -c '[[ a ]]'; " * 20,
        "[[ \ud800 ]]",
        "[[ a ]] " + "a" * 40_000,
    ):
        found = LINES.read(line)
        assert found.unreadable
        assert not found.parts


@given(st.text("ab [](){}<>'\"\\$`;&|\n#=*-!EOF", max_size=25))
@settings(max_examples=150, deadline=None)
def test_no_line_is_an_error(line: str) -> None:
    found = LINES.read(line)
    assert bool(found.parts) != bool(found.unreadable)


def test_every_starter_loads_without_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.approvals.policy.shell.lines.LINES", ShellLines(lambda: None))
    for each in starters():
        load_text(each.text, each.name)


def test_overnight_lets_an_agent_commit_with_a_here_document() -> None:
    overnight = load_text(starter("overnight").text)
    assert verdict(overnight, EVERYDAY[2].line) == "allow"
    assert (
        verdict(overnight, "git add -A && git commit -m \"$(cat <<'EOF'\nx\nEOF\n)\" && git push") == "deny"
    )
    assert verdict(overnight, 'git commit -m "$(cat ~/.ssh/id_rsa)"') == "supervisor"


def test_an_example_of_a_rule_is_read_as_a_call_would_be() -> None:
    text = 'name: p\nrules:\n  - {action: allow, kind: execute, when: {command: {glob: [git commit *, cat]}}, match: "$ git commit -m \\"$(cat <<\'E\'\\nx\\nE\\n)\\""}\n'
    assert load_text(text).policies


def test_a_line_says_why_it_cannot_be_read() -> None:
    assert LINES.read("[[ a ]] && eval $x") == ShellLine(unreadable="`eval`, which runs what cannot be seen")
