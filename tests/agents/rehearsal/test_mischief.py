import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.rehearsal.conftest import StartAgent
from tests.agents.rehearsal.raw_client import WAIT, RawClient, signals_as_usual

from legation.agents.rehearsal.steps import GARBAGE

pytestmark = pytest.mark.heavy  # a process or more for each test

GRACE = 0.5  # long enough to see that a process does not leave


def test_a_flood_is_numbered_and_of_the_asked_size(client: RawClient, work: Path) -> None:
    session = client.open(work)
    chunks = client.play(session, "flood 1200 20").of("agent_message_chunk")
    assert [int(chunk["content"]["text"][:8]) for chunk in chunks] == list(range(1200))
    assert {len(chunk["content"]["text"]) for chunk in chunks} == {20}


def test_a_flood_ends_by_a_cancel(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "flood 100000000")
    client.until(prompt, stop=lambda message: "update" in message.get("params", {}))
    client.send(method="session/cancel", params={"sessionId": session})
    assert client.until(prompt).stop == "cancelled"


def test_a_big_line_has_exactly_that_size(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.play(session, "big 3000000")
    assert 3_000_000 in [len(line) for line in client.lines]


def test_what_it_says_before_it_stalls_is_heard_when_it_stalls(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "say-and-stall hi")
    client.until(prompt, stop=lambda message: "update" in message.get("params", {}))
    client.send(method="session/cancel", params={"sessionId": session})
    listing = client.ask("session/list", {})
    assert client.until(listing).answer["result"]["sessions"]  # it reads, and does not end its turn


def test_a_hard_stall_does_not_heed_a_cancel(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "say on", f"stall-hard {GRACE}", "say never")
    client.until(prompt, stop=lambda message: "update" in message.get("params", {}))
    client.send(method="session/cancel", params={"sessionId": session})
    listing = client.ask("session/list", {})
    answers: dict[int, Any] = {}
    while (
        not {prompt, listing} <= answers.keys()
    ):  # on a busy machine the stall may end before the list comes
        message = client.read()
        answers[message.get("id", 0)] = message.get("result")
    assert answers[listing]["sessions"]
    assert answers[prompt]["stopReason"] == "cancelled"


@pytest.mark.parametrize(("step", "code"), [("crash 7", 7), ("kill-self KILL", -9), ("kill-self SEGV", -11)])
def test_the_agent_dies_as_it_is_told(client: RawClient, work: Path, step: str, code: int) -> None:
    session = client.open(work)
    client.start(session, "say last words", step)
    while client.read_line():
        pass
    assert b"last words" in client.lines[-1]
    assert client.process.wait(WAIT) == code


# Where the main thread hardly ever gets its turn, as on a machine with too much to do, and a signal to the process
# waits for it: the thread that sent it must not go on meanwhile.
BUSY = """
import os, sys, threading
from legation.agents.rehearsal.steps import kill_self
def turn():
    begin.wait()
    kill_self(None, {"SIGNAL": sys.argv[1]})
    os.write(1, b"went on")
begin = threading.Event()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
threading.Thread(target=turn).start()
os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
begin.set()
os.read(0, 1)
"""


def _as_usual_but_no_core() -> None:
    signals_as_usual()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@pytest.mark.parametrize("name", ["KILL", "TERM", "HUP", "QUIT", "ABRT", "SEGV"])
def test_nothing_is_said_after_a_deadly_signal(name: str) -> None:
    for _ in range(5):
        agent = subprocess.Popen(
            [sys.executable, "-c", BUSY, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_as_usual_but_no_core,
        )
        with agent:
            assert agent.stdout is not None
            assert (agent.stdout.read(), agent.wait(WAIT)) == (b"", -signal.Signals[f"SIG{name}"])


@pytest.mark.parametrize("kind", [kind for kind in GARBAGE if kind != "torn"])
def test_garbage_comes_between_two_good_lines(client: RawClient, work: Path, kind: str) -> None:
    session = client.open(work)
    client.start(session, "say before", f"garbage {kind}", "say after")
    lines: list[bytes] = []
    while not lines or b"stopReason" not in lines[-1]:
        line = client.read_line()
        assert line
        lines.append(line)
    assert b"before" in lines[0]
    assert b"after" in lines[-2]
    expected = {
        "text": b"not JSON",
        "null": b"null",
        "number": b"123",
        "array": b"[]",
        "string": b'"x"',
        "blank": b"\n",
        "half-line": b'{"jsonrpc"',
        "invalid-utf8": b"\xff\xfe",
        "lone-surrogate": b"\\ud800",
        "depth": b"[" * 20_000,
        "2**80": b"1208925819614629174706176",
        "nan": b"NaN",
        "stray-reply": b"999999",
    }
    assert expected[kind] in b"".join(lines[1:-2])


def test_torn_output_ends_in_mid_line(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.start(session, "garbage torn", "crash 1")
    line = client.read_line()
    assert line
    assert not line.endswith(b"\n")
    with pytest.raises(json.JSONDecodeError):
        json.loads(line)


def test_stderr_gets_as_many_bytes_as_asked(client: RawClient, work: Path) -> None:
    session = client.open(work)
    assert client.play(session, "stderr 400000").stop == "end_turn"
    client.close()
    assert len(client.stderr) == 400_000


def test_ignored_signals_do_not_end_the_agent(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.play(session, "ignore-signals")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        client.process.send_signal(number)
    assert client.play(session, "say still here").text == "still here"
    client.end_input()
    assert client.process.wait(WAIT) == 0


def test_a_signal_ends_an_agent_that_does_not_ignore_it(client: RawClient, work: Path) -> None:
    client.open(work)
    client.process.terminate()
    assert client.process.wait(WAIT) == -signal.SIGTERM


def test_a_stubborn_agent_outstays_its_client(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.play(session, "ignore-stdin-eof")
    client.end_input()
    with pytest.raises(subprocess.TimeoutExpired):
        client.process.wait(GRACE)
    client.process.kill()
    assert client.process.wait(WAIT) == -signal.SIGKILL


def test_the_tree_is_a_child_a_grandchild_and_a_daemon(client: RawClient, work: Path) -> None:
    session = client.open(work)
    pids = json.loads(client.play(session, "spawn-tree").text)
    try:
        agent = client.process.pid
        assert list(pids) == ["child", "grandchild", "daemon"]
        assert os.getpgid(pids["child"]) == agent
        assert os.getsid(pids["grandchild"]) == pids["grandchild"]
        assert os.getsid(pids["daemon"]) not in (agent, pids["daemon"])
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)


def test_a_stubborn_tree_survives_a_polite_signal(client: RawClient, work: Path) -> None:
    session = client.open(work)
    pids = json.loads(client.play(session, "spawn-tree ignore-signals").text)
    try:
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        for pid in pids.values():
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state in "SR"
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)


def test_a_tree_that_holds_keeps_the_stderr_of_a_dead_agent_open(client: RawClient, work: Path) -> None:
    session = client.open(work)
    pids = json.loads(client.play(session, "spawn-tree hold").text)
    client.process.kill()
    client.process.wait(WAIT)
    assert not client.stderr_ended(GRACE)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert client.stderr_ended(WAIT)


def test_late_words_come_after_the_answer(client: RawClient, work: Path) -> None:
    session = client.open(work)
    assert client.play(session, "late one more thing").text == ""
    assert client.read()["params"]["update"]["content"]["text"] == "one more thing"


def test_unknown_and_disordered_updates_are_sent_as_they_are(client: RawClient, work: Path) -> None:
    session = client.open(work)
    played = client.play(session, "unknown-update", "out-of-order")
    assert played.updates[0]["sessionUpdate"] == "mystery_update"
    assert [update["sessionUpdate"] for update in played.updates[1:]] == [
        "tool_call_update",
        "tool_call",
        "tool_call",
        "tool_call_update",
    ]
    assert len({update["toolCallId"] for update in played.updates[1:]}) == 1


def test_env_says_what_is_set_and_only_when_forced_its_value(start_agent: StartAgent, work: Path) -> None:
    client = start_agent(env={"API_KEY": "s3cret"})
    session = client.open(work)
    assert client.play(session, "env API_KEY OTHER_KEY").text == "API_KEY: set\nOTHER_KEY: not set"
    assert client.play(session, "env! API_KEY").text == "API_KEY=s3cret"
    assert sum(b"s3cret" in line for line in client.lines) == 1
