"""Shell lines: what they run stands among their parts, or they are unreadable (INV-P2)."""

import re
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.approvals.policy.rules import allows, denies

from legation.approvals.policy.shell.split import ShellLine, split

UNREADABLE = None


def shown(line: ShellLine) -> list[str] | None:
    """A hole is shown as …"""
    if line.unreadable:
        return UNREADABLE
    return ["".join("…" if piece is None else piece for piece in part) for part in line.parts]


TABLE: list[tuple[str, list[str] | None]] = [
    ("git status", ["git status"]),
    ("env$X git push", None),  # X may be empty
    ("./$X git push", None),
    ("$D/env git push", None),
    ("$D/tool-$X git", ["…/tool-… git"]),
    ("  git   status  ", ["git status"]),
    ("", [""]),
    ("# rm -rf /", [""]),
    ("git status # && rm x", ["git status"]),
    ("echo a#b", ["echo a#b"]),
    # Operators
    ("git status && rm -rf /", ["git status", "rm -rf /"]),
    ("git status||rm x", ["git status", "rm x"]),
    ("git status;rm x", ["git status", "rm x"]),
    ("git status\nrm x", ["git status", "rm x"]),
    ("git log | head -1 |& cat", ["git log", "head -1", "cat"]),
    ("git status & rm x", ["git status", "rm x"]),
    ("git status &\nrm x &", ["git status", "rm x"]),
    ("(cd a; rm x)", ["cd a", "rm x"]),
    ("{ rm x; }", ["rm x"]),
    ("! rm x", ["rm x"]),
    # Quotes
    ("echo 'a && b'", ["echo a && b"]),
    ('echo "a; rm x"', ["echo a; rm x"]),
    ('"rm" -rf /', ["rm -rf /"]),
    ("r'm' x", ["rm x"]),
    ('r""m x', ["rm x"]),
    ("r\\m x", ["rm x"]),
    ("git \\\n status", ["git status"]),
    ("echo a\\;b", ["echo a;b"]),
    ("'git status' x", ["'git status' x"]),
    ("echo 'open", UNREADABLE),
    ('echo "open', UNREADABLE),
    ("echo \\", UNREADABLE),
    # What the shell fills in
    ("echo $HOME", ["echo …"]),
    ("echo ${HOME}", ["echo …"]),
    ("echo ${X:-y}", ["echo …"]),
    ("echo ${X:-$(rm x)}", UNREADABLE),
    ("echo ${X:-`rm x`}", UNREADABLE),
    ("echo ${X@P}", UNREADABLE),
    ("echo ${a[$(rm x)]}", UNREADABLE),
    ("$X -rf /", ["…-rf /"]),
    ("$X rm", ["…rm"]),
    ("r$X -rf /", None),
    ("/bin/r?", None),
    ("{rm,-rf,/}", ["…"]),
    ("echo {a,b}", ["echo …"]),
    ("echo {} a}", ["echo {} a}"]),
    ("rm *.py", ["rm ….py"]),
    ("echo $'\\x72m'", ["echo …"]),
    ("$'\\x72m' x", ["…x"]),
    ("echo $((1 + 2))", ["echo …"]),
    ("echo $((a[$(rm x)]))", UNREADABLE),
    ("echo $[1+1]", UNREADABLE),
    ("echo a$ b", ["echo a$ b"]),
    # Commands within commands
    ("echo $(rm x)", ["rm x", "echo …"]),
    ('echo "$(rm x)"', ["rm x", "echo …"]),
    ("echo `rm x`", ["rm x", "echo …"]),
    ("echo `echo \\`rm x\\``", ["rm x", "echo …"]),
    ("echo $(echo $(rm x))", ["rm x", "echo …"]),
    ("echo '$(rm x)'", ["echo $(rm x)"]),
    ("echo \\$(rm x)", UNREADABLE),
    ("$(echo rm) x", ["echo rm", "…x"]),
    ("X=$(rm x)", ["rm x", "X=…"]),
    ("echo $(rm x", UNREADABLE),
    ("echo rm x)", UNREADABLE),
    ("echo `rm x", UNREADABLE),
    # Redirections
    ("echo x > /etc/passwd", ["> /etc/passwd", "echo x"]),
    ("echo x>>/etc/passwd", ["> /etc/passwd", "echo x"]),
    ("echo x &> f", ["> f", "echo x"]),
    ("echo x >| f", ["> f", "echo x"]),
    ("echo x >& f", ["> f", "echo x"]),
    ("> f", ["> f"]),
    ("cat < ~/.ssh/id_rsa", ["< ~/.ssh/id_rsa", "cat"]),
    ("cat <<< hello", ["<<< hello", "cat"]),
    ("pytest 2>&1", ["pytest"]),
    ("pytest 2>/dev/null >&2", ["pytest"]),
    ("pytest 2> err", ["> err", "pytest"]),
    ("echo x > $F", ["> …", "echo x"]),
    ("2>&1 rm x", ["rm x"]),
    ("cat <<EOF\nrm x\nEOF", UNREADABLE),
    ("cat <<-'E'\nE", UNREADABLE),
    ("diff <(rm x) y", UNREADABLE),
    ("tee >(rm x)", UNREADABLE),
    # Assignments and programs by path
    ("A=1 B=2 git status", ["A=1 B=2 git status", "git status"]),
    ("PATH=/tmp/evil", ["PATH=/tmp/evil"]),
    ("/bin/rm -rf /", ["/bin/rm -rf /", "rm -rf /"]),
    ("./git status", ["./git status", "git status"]),
    # Wrappers
    ("sudo rm x", ["sudo rm x", "rm x"]),
    ("sudo -u bob -- rm x", ["sudo -u bob -- rm x", "rm x"]),
    ("sudo -ubob A=1 rm x", ["sudo -ubob A=1 rm x", "rm x"]),
    ("sudo --user bob rm x", UNREADABLE),
    ("sudo -i", UNREADABLE),
    ("/usr/bin/sudo rm x", ["/usr/bin/sudo rm x", "sudo rm x", "rm x"]),
    ("env A=1 rm x", ["env A=1 rm x", "rm x"]),
    ("env -u A rm x", ["env -u A rm x", "rm x"]),
    ("env -S 'rm x'", UNREADABLE),
    ("env --split-string='rm x'", UNREADABLE),
    ("env - rm x", UNREADABLE),
    ("env $X rm", UNREADABLE),
    ("nohup nice -n 5 rm x", ["nohup nice -n 5 rm x", "nice -n 5 rm x", "rm x"]),
    ("timeout -k 1 5 rm x", ["timeout -k 1 5 rm x", "rm x"]),
    ("command rm x", ["command rm x", "rm x"]),
    ("command -v git", ["command -v git"]),
    ("exec rm x", ["exec rm x", "rm x"]),
    ("busybox rm x", ["busybox rm x", "rm x"]),
    ("time rm x", ["time rm x", "rm x"]),
    ("time { rm x; }", UNREADABLE),
    ("ls | xargs rm", ["ls", "xargs rm", "rm", "rm …"]),
    ("ls | xargs -n1 -0 rm -f", ["ls", "xargs -n1 -0 rm -f", "rm -f", "rm -f …"]),
    ("ls | xargs -I{} rm {} x", ["ls", "xargs -I{} rm {} x", "rm …x"]),
    ("ls | xargs sh -c", UNREADABLE),
    ("xargs --max-args 1 rm", UNREADABLE),
    ("bash -c 'git status; rm x'", ["bash -c git status; rm x", "git status", "rm x"]),
    ("sh -ec 'rm x'", ["sh -ec rm x", "rm x"]),
    ("bash -o pipefail -c 'rm x'", ["bash -o pipefail -c rm x", "rm x"]),
    ("bash -oc pipefail 'rm x'", UNREADABLE),
    ('bash -c "$X"', UNREADABLE),
    ("bash script.sh", ["bash script.sh"]),
    ("echo rm x | bash", UNREADABLE),
    ("bash -s < f", UNREADABLE),
    ("bash -c 'bash -c \"rm x\"'", ['bash -c bash -c "rm x"', "bash -c rm x", "rm x"]),
    ("find . -exec rm {} \\;", ["find . -exec rm {} ;", "rm …"]),
    ("find . -exec rm {} +", ["find . -exec rm {} +", "rm …"]),
    ("find . -exec sh -c 'rm {}' \\;", UNREADABLE),
    ("find . $X", UNREADABLE),
    ("eval rm x", UNREADABLE),
    ("trap 'rm x' EXIT", UNREADABLE),
    ("su -c 'rm x'", UNREADABLE),
    # Compound commands
    ("if git status; then rm x; else ls; fi", ["git status", "rm x", "ls"]),
    ("while true; do rm x; done", ["true", "rm x"]),
    ("for f in a b; do rm $f; done", ["rm …"]),
    ("for f in $(ls); do rm $f; done", ["ls", "rm …"]),
    ("for f do rm x; done", ["rm x"]),
    ("case x in x) rm x;; esac", UNREADABLE),
    ("git() { rm x; }; git status", UNREADABLE),
    ("function git { rm x; }", UNREADABLE),
    ("[[ -f x ]] && rm x", UNREADABLE),
    ("[[ a < b ]]", UNREADABLE),
    ("[ -f x ] && rm x", ["[ -f x ]", "rm x"]),
    ("((x=1))", UNREADABLE),
    ("coproc rm x", UNREADABLE),
    ("a=(rm x)", UNREADABLE),
    # What a loop fills is assigned
    ("for PATH in evil; do git status; done", ["PATH=…", "git status"]),
    ("for HOME in evil\ndo git status; done", ["HOME=…", "git status"]),
    ("for PATH do git status; done", ["PATH=…", "git status"]),
    ("for $X in a; do git status; done", UNREADABLE),
    ("ls | while read -r PATH; do git x; done", ["ls", "read -r PATH", "PATH=…", "git x"]),
    ("printf -v PATH evil; git x", ["printf -v PATH evil", "PATH=…", "git x"]),
    ("printf -vPATH evil", ["printf -vPATH evil", "PATH=…"]),
    ("ls | while read -r line; do git $line; done", ["ls", "read -r line", "git …"]),
    ("printf '%s\\n' $X", ["printf %s\\n …"]),
    # The text in a variable is read again by arithmetic, and with it the commands in a subscript
    ("for x in 'a[$(rm y)]'; do echo $((x)); done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do echo ${!x}; done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do echo ${X:x}; done", UNREADABLE),
    ("for x in '-v a[$(rm)]'; do [ $x ]; done", UNREADABLE),
    ("for x in '-v a[$(rm)]'; do test $x -gt 3; done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do [ -v \"$x\" ]; done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do declare \"$x=1\"; done", UNREADABLE),
    ("for x in '-va[$(rm)]'; do printf $x y; done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do ls & wait -n -p \"$x\"; done", UNREADABLE),
    ("for x in 'a[$(rm y)]'; do : ${y:=$x}; done", UNREADABLE),
    ("[ -v 'a[$(rm y)]' ]", UNREADABLE),
    ("test -v 'a[$(rm y)]'", UNREADABLE),
    ("ls | read 'a[$(rm y)]'", UNREADABLE),
    ("printf -v 'a[$(rm y)]' x", UNREADABLE),
    ("declare 'a[$(rm y)]=1'", UNREADABLE),
    ("declare -i x='a[$(rm y)]'", UNREADABLE),
    ("declare -n x='a[$(rm y)]'; echo $x", UNREADABLE),
    ("let 'x=a[$(rm y)]'", UNREADABLE),
    ("builtin printf -v 'a[$(rm y)]' x", UNREADABLE),
    ("echo ${X:1:2} ${X: -1} ${X:-y} ${#X} ${X%.*}", ["echo …"]),
    ("[ $? -eq 0 ] && rm x", ["[ …-eq 0 ]", "rm x"]),
    ('[ "$X" = y ] && rm x', ["[ … = y ]", "rm x"]),
    ("declare X=$Y z", ["declare X=… z"]),
    # A backslash in backticks in quotes goes before the quotes in them are read
    ('echo "`echo "\\" ; rm y; \\""`"', UNREADABLE),
    ("echo a\0b", UNREADABLE),
    ("echo " + "a" * 40_000, UNREADABLE),
    ("echo " + "$(" * 100 + ")" * 100, UNREADABLE),
    (";".join(["ls x"] * 3), ["ls x"]),
    (";".join(f"ls {number}" for number in range(200)), UNREADABLE),
]


@pytest.mark.parametrize(("line", "parts"), TABLE, ids=[line[:40] for line, _ in TABLE])
def test_a_line_is_taken_apart(line: str, parts: list[str] | None) -> None:
    assert shown(split(line)) == parts


def test_the_table_is_long() -> None:
    assert len(TABLE) > 60


@given(st.text("ab '\"\\$(){}`;&|<>\n#=*-", max_size=30))
def test_no_line_is_an_error(line: str) -> None:
    found = split(line)
    assert bool(found.parts) != bool(found.unreadable)


# One write for each call: several may run at once.
STUB = '#!{shell}\nprintf "%s\\0" "${{0##*/}}" "$@" end-of-call >> "$LOG"\n'
REAL = ("env", "xargs", "timeout", "nohup", "nice", "find", "bash", "sh", "setsid", "stdbuf")
RECORDED = ("rm", "git", "ls", "evil", "cat")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few real wrappers, and programs that only note how they were called."""
    folder = tmp_path_factory.mktemp("bin")
    shell = shutil.which("sh")
    for name in RECORDED:
        (folder / name).write_text(STUB.format(shell=shell))
        (folder / name).chmod(0o755)
    for name in REAL:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def is_safe_to_run(line: str) -> bool:
    """Without a slash and without a way up, a line reaches neither programs nor files but those of the test."""
    return (
        not any(danger in line for danger in ("/", "..", "~", "\0", "while", "sudo", "cd "))
        and len(line) < 1000
    )


def started(line: str, programs: Path, place: Path) -> list[str]:
    """What bash really starts for the line, as one text each."""
    assert is_safe_to_run(line), "a hostile line must never meet the real machine"
    log = (
        place / f"log-{uuid4()}"
    )  # what an earlier line has left in the background may still write into its own
    log.write_bytes(b"")
    (place / "file").write_text("x\n")
    subprocess.run(
        [programs / "bash", "-c", line],
        cwd=place,
        env={"PATH": str(programs), "LOG": str(log), "HOME": str(place), "X": "evil x", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    calls = log.read_bytes().split(b"end-of-call\0")
    return [b" ".join(call.split(b"\0")[:-1]).decode(errors="replace") for call in calls if call]


def covers(line: ShellLine, call: str) -> bool:
    patterns = ["".join(".*" if piece is None else re.escape(piece) for piece in part) for part in line.parts]
    # A word that came to nothing leaves a space that no program sees; and `bash rm` starts our rm, a script.
    seen = (call, f"{call} ", f"bash {call}")
    return any(re.fullmatch(pattern, text, re.DOTALL) for pattern in patterns for text in seen)


def assert_covered(line: str, programs: Path, place: Path) -> None:
    found = split(line)
    if found.unreadable:
        return
    calls = started(line, programs, place)
    if any(re.match(r"(?!\w+\+?=)\S*…", part) for part in shown(found) or []):
        # Nobody knows which program that is, so nobody knows what it starts: no allow is reached, and no deny escaped.
        usual = {"command": {"glob": ["git *", "ls *", "env *"]}}
        assert not calls or not allows(usual, command=line, kind="execute"), line
        for name in {call.split()[0] for call in calls if call.strip()}:
            denied = {"command": {"glob": [name, f"{name} *"]}}
            assert denies(denied, command=line, kind="execute"), line
        return
    for call in calls:
        assert covers(found, call), f"{line!r} starts {call!r}, which is not in {shown(found)}"


@pytest.mark.heavy
def test_bash_starts_nothing_that_is_not_among_the_parts(programs: Path, tmp_path: Path) -> None:
    lines = [line for line, _ in TABLE if is_safe_to_run(line)]
    assert len(lines) > 60
    for line in lines:
        assert_covered(line, programs, tmp_path)


def test_what_bash_starts_is_seen_by_the_test(programs: Path, tmp_path: Path) -> None:

    assert sorted(started("git a 'b c'; $X; env rm", programs, tmp_path)) == ["evil x", "git a b c", "rm"]
    assert not covers(split("git status"), "rm x")


WORDS = [
    "rm",
    "git",
    "ls",
    "$X",
    "'rm'",
    'r""m',
    "x",
    "-c",
    "$(rm y)",
    "`git z`",
    "A=1",
    "env",
    "bash",
    "file",
    "*",
]
WORDS += [
    "'rm q'",
    "nohup",
    "timeout",
    "5",
    "xargs",
    "{rm,x}",
    "\\rm",
    '"$X"',
    "$'rm'",
    "-n",
    "find",
    "-exec",
    "{}",
]
GLUE = [
    " ",
    " ",
    " ",
    ";",
    " && ",
    " || ",
    "|",
    "\n",
    "(",
    ")",
    " & ",
    " > out ",
    " 2>&1 ",
    " < file ",
    "{ ",
    "; }",
]
GLUE += [
    "if ",
    "; then ",
    "; fi",
    "for f in ",
    "; do ",
    "; done",
    "! ",
    " #",
    "time ",
    "\\;",
    "$(",
    "`",
    '"',
    "'",
]


@pytest.mark.heavy
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS + GLUE + [" "] * 12), min_size=1, max_size=14).map("".join))
def test_bash_starts_nothing_else_for_any_line(programs: Path, tmp_path: Path, line: str) -> None:
    assert_covered(line, programs, tmp_path)
