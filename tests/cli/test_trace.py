"""`legation trace`: lists and shows, and proves a record that was not touched, with and without a server."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict
from tests.cli.canned_command import Command, command
from tests.cli.command import json_lines, legation
from tests.client.canned_door import AT, CannedServer, canned, entry

from legation.approvals.trace.export import ExportedContent, ExportedStep
from legation.approvals.trace.step import GENESIS, ChainStep, commitment
from legation.wire.api.approvals import ChainHead, ChainReport, TraceDetail, TraceStep, rfc3339

pytestmark = pytest.mark.heavy  # a process or more for each test

STEP = TraceStep(
    server="srv_1",
    seq=1,
    at=rfc3339(AT),
    step="decided",
    hash="ab" * 32,
    policy="human_approval",
    policy_rule="careful:ask",
    policy_version="v",
    status="pending",
    reason=None,
    by="user:usr_1",
    level=2,
    status_code=None,
    latency_ms=None,
)
EVIL = "\x1b]0;owned\x07\u202e"


def chain(server: str, steps: int) -> list[bytes]:
    """An export of one chain, as the server writes it."""
    lines, before, salt = [], GENESIS, b"s" * 16
    for seq in range(1, steps + 1):
        said = b'{"n":%d}' % seq
        step = ChainStep(
            workspace_id="local",
            server=server,
            seq=seq,
            at=AT + seq,
            step="proposed",
            trace_id=f"{seq:032x}",
            agent="claude",
            tool="Bash",
            prev_hash=before,
            digests=msgspec.json.encode({"params": commitment(salt, said)}).decode(),
        )
        before = step.hash
        content = {"params": ExportedContent(salt.hex(), msgspec.Raw(said))}
        lines.append(msgspec.json.encode(ExportedStep(step, step.hash, content)) + b"\n")
    return lines


def hash_of(line: bytes) -> str:
    found: str = msgspec.json.decode(line)["hash"]
    return found


@pytest.fixture
def server() -> Iterator[CannedServer]:
    lines = chain("srv_1", 3)
    head = ChainHead(server="srv_1", seq=3, hash=hash_of(lines[-1]))
    good = ChainReport(server="srv_1", steps=3, contents=3, purged=0, head=head, problems=[])
    one = entry(
        "t1", policy="human_approval", approval_status="denied", approved_by="user:u", status_code=403
    )
    detail = TraceDetail(**asdict(one), steps=[STEP], result={"said": f"{EVIL}\nstep x"})
    with canned(traces=[detail], chains=[good], export=b"".join(lines)) as running:
        yield running


@pytest.fixture
def run(home: Path, server: CannedServer) -> Command:
    return command(home, server)


def test_calls_are_listed_with_who_answered(run: Command, server: CannedServer) -> None:
    done = run("trace", "--agent", "a", "--tool", "t", "--session", "s", "--since", "24h", "--limit", "5")
    assert (done.returncode, done.stderr) == (0, "")
    row = done.stdout.splitlines()[1]
    assert row.startswith("t1  ")
    assert "denied by user:u  403" in row
    assert server.door.bodies == [("a", "t", "s", "24h", 5)]
    assert json_lines(run("trace", "--json").stdout)[0]["trace_id"] == "t1"


def test_one_call_is_shown_with_all_its_steps(run: Command) -> None:
    shown = run("trace", "show", "t1").stdout
    assert "decided" in shown
    assert "human_approval careful:ask pending" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert "\nstep x" not in shown
    assert json_lines(run("trace", "show", "t1", "--json").stdout)[0]["steps"][0]["seq"] == 1
    missing = run("trace", "show", "t")
    assert missing.returncode == 3
    assert "give the whole id, as `legation trace` lists it" in missing.stderr


def test_the_chains_of_a_server_are_verified_and_their_heads_named(
    run: Command, server: CannedServer
) -> None:
    head = server.door.chains[0].head
    done = run("trace", "verify")
    assert done.returncode == 0
    assert done.stdout == f"srv_1: good; 3 steps, 3 contents\n    head srv_1:3:{head.hash}\n"
    assert run("trace", "verify", "--head", f"srv_1:3:{head.hash}").returncode == 0
    assert server.door.bodies[-1] == [f"srv_1:3:{head.hash}"]
    assert run("trace", "verify", "--head", f"3:{head.hash}").returncode == 0
    assert server.door.bodies[-1] == [f"srv_1:3:{head.hash}"]


def test_what_is_wrong_with_a_chain_is_told_and_ends_with_1(run: Command, server: CannedServer) -> None:
    bad = msgspec.structs.replace(server.door.chains[0], problems=["step 2: it was changed"])
    server.door.chains = [server.door.chains[0], bad]
    done = run("trace", "verify")
    assert done.returncode == 1
    assert "srv_1: step 2: it was changed\nsrv_1: NOT as it was written" in done.stdout
    many = run("trace", "verify", "--head", "3:" + "0" * 64)
    assert (many.returncode, "there are 2" in many.stderr) == (2, True)


def test_an_export_is_a_private_file_that_verifies_without_a_server(
    run: Command, server: CannedServer, home: Path
) -> None:
    assert run("trace", "export", "out.jsonl").stdout == "wrote 3 steps to out.jsonl\n"
    assert (home / "out.jsonl").read_bytes() == server.door.export
    assert (home / "out.jsonl").stat().st_mode & 0o777 == 0o600
    assert run("trace", "export").stdout.encode() == server.door.export
    assert run("trace", "export", "-", "--server", "srv_1", "--after", "2").stdout.count("\n") == 1
    assert server.door.bodies[-1] == ("srv_1", 2)
    done = legation(home, "trace", "verify", "out.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("srv_1: good; 3 steps, 3 contents\n    head srv_1:3:")
    assert legation(home, "trace", "verify", "-", stdin=server.door.export.decode()).returncode == 0


def changed(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"tool":"Bash"', b'"tool":"Bach"'), lines[2]]


def said_otherwise(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'{"n":1}', b'{"n":9}'), *lines[1:]]


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (changed, "step 2: it was changed"),
        (said_otherwise, "step 1: its params was changed or put in"),
        (lambda lines: [lines[0], lines[2]], "step 3: the steps before it, from 2 on, are missing"),
    ],
)
def test_an_export_that_was_touched_is_found_out(home: Path, tamper: object, words: str) -> None:
    assert callable(tamper)
    (home / "x.jsonl").write_bytes(b"".join(tamper(chain("srv_1", 3))))
    done = legation(home, "trace", "verify", "x.jsonl")
    assert done.returncode == 1
    assert words in done.stdout
    (found,) = json_lines(legation(home, "trace", "verify", "x.jsonl", "--json").stdout)
    assert words in found["problems"]


def test_an_end_that_was_cut_off_is_found_by_the_head_that_was_kept(home: Path) -> None:
    lines = chain("srv_1", 3) + chain("srv_2", 2)
    (home / "x.jsonl").write_bytes(b"".join(lines))
    (home / "cut.jsonl").write_bytes(b"".join((*lines[:2], *lines[3:])))
    head = f"3:{hash_of(lines[2])}"
    assert legation(home, "trace", "verify", "cut.jsonl").returncode == 0  # by itself it cannot show it
    for file, code in (("x.jsonl", 0), ("cut.jsonl", 1)):
        assert legation(home, "trace", "verify", file, "--head", f"srv_1:{head}").returncode == code
    (home / "one.jsonl").write_bytes(b"".join(lines[:2]))
    assert "its end was cut off" in legation(home, "trace", "verify", "one.jsonl", "--head", head).stdout


@pytest.mark.parametrize(
    ("content", "argv", "words"),
    [
        (b"", (), "there is no step in it"),
        (b"{}\n", (), "cannot read line 1 of the export"),
        (b"", ("--head", "x"), "SERVER:SEQ:HASH"),
        (b"", ("--head", "3:" + "0" * 64, "--head", "s:3:" + "0" * 64), "which chain"),
    ],
)
def test_what_cannot_be_verified_is_no_success(
    home: Path, content: bytes, argv: tuple[str, ...], words: str
) -> None:
    (home / "x.jsonl").write_bytes(content)
    done = legation(home, "trace", "verify", "x.jsonl", *argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert legation(home, "trace", "verify", "absent.jsonl").returncode == 2


def test_a_file_that_is_not_there_is_named_with_what_to_give(tmp_path: Path) -> None:
    done = legation(tmp_path, "trace", "verify", "nowhere.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "legation: cannot read nowhere.jsonl: No such file or directory; "
        "give a file that `legation trace export` wrote\n"
    )
