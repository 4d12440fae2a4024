"""`legation receiver`, watched as a user would."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from tests.cli.command import LIMIT, environment, legation
from tests.runner.caller_server import TOKEN
from tests.runner.test_fields import ACTS
from tests.runner.test_runner import config_of, scripted, started
from tests.server.test_runners import body

from legation.wire.callbacks import signed_headers

pytestmark = pytest.mark.heavy


class Receiver:
    def __init__(self, home: Path, *options: str) -> None:
        token = home / "token"
        token.write_text(TOKEN + "\n")
        argv = [sys.executable, "-m", "legation", "receiver", "--token-file", str(token), *options]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(home),
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout
        self.url = self.lines.readline().split()[-1]

    def post(self, content: bytes, nonce: str) -> int:
        headers = signed_headers(TOKEN, content, time.time_ns() // 1_000_000, nonce)
        return httpx2.post(
            self.url, content=content, headers=headers, timeout=LIMIT, trust_env=False
        ).status_code

    def stop(self) -> int:
        os.kill(self.process.pid, signal.SIGINT)
        code = self.process.wait(LIMIT)
        self.lines.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return code

    def type(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def until(self, part: str) -> str:
        """Read on to a line that has it; a runner's test has a bound."""
        while part not in (found := self.lines.readline()):
            assert found, f"it ended without {part!r}"
        return found


def test_what_a_runner_reports_is_printed(tmp_path: Path) -> None:
    update = {
        "sessionId": "s",
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"text": "hello"}},
    }
    receiver = Receiver(tmp_path, "--print", "--data", str(tmp_path / "kept"))
    try:
        assert receiver.post(body(1, notifications=[update], sessionId="s"), "nonce-0001") == 200
        assert receiver.lines.readline() == "1 session_update: 1 notification(s), session s\n"
        assert receiver.lines.readline() == "  agent_message_chunk: 'hello'\n"
        assert receiver.post(body(3, "prompt_complete", stopReason="end_turn"), "nonce-0002") == 200
        assert receiver.lines.readline().startswith("1 report(s) before 3 never came")
        assert receiver.lines.readline() == "3 prompt_complete: 0 notification(s), ended: end_turn\n"
    finally:
        receiver.stop()
    again = Receiver(tmp_path, "--data", str(tmp_path / "kept"))  # what was used stays used
    try:
        assert again.post(body(4), "nonce-0001") == 401
        assert again.post(body(1), "nonce-0003") == 200
    finally:
        again.stop()


def test_what_an_agent_says_moves_no_cursor(tmp_path: Path) -> None:
    update = {"sessionId": "s", "update": {"sessionUpdate": "\x1b[2Jx", "content": {"text": "\x9b1A"}}}
    receiver = Receiver(tmp_path, "--print")
    try:
        error = {"message": "gone\x1b]0;title\x07\nbeside"}
        assert (
            receiver.post(body(1, "prompt_failed", notifications=[update], error=error), "nonce-0001") == 200
        )
        assert [receiver.lines.readline() for _ in range(2)] == [
            "1 prompt_failed: 1 notification(s), failed: gone\\x1b]0;title\\x07 beside\n",
            "  \\x1b[2Jx: '\\x9b1A'\n",
        ]
    finally:
        receiver.stop()


def test_without_a_token_nothing_starts(tmp_path: Path) -> None:
    done = legation(tmp_path, "receiver", "--token-file", "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot read the token in none" in done.stderr


ASKS = scripted("""
hello(); session()
while True:
    message = read()
    if message.get("method") == "session/prompt":
        text = message["params"]["prompt"][0]["text"]
        permission(len(text), title=text, kind="execute", rawInput={"command": "rm it"})
        update(answer(len(text))["result"]["outcome"]["optionId"])
        done(message["id"])
""")


@pytest.mark.parametrize(("flag", "told"), [("--approve", "allow_once"), ("--deny", "reject_once")])
async def test_a_user_answers_all_alike(tmp_path: Path, flag: str, told: str) -> None:
    receiver = Receiver(tmp_path, "--print", flag)
    try:
        config = config_of(receiver.url, "first", permissions="route")
        async with started(tmp_path, config, agent=ASKS) as ran:
            assert (await ran.ended())[0] == 0
        assert "may it? first (execute rm it)" in await asyncio.to_thread(receiver.until, "may it?")
        assert told in await asyncio.to_thread(receiver.until, "agent_message_chunk")
        await asyncio.to_thread(receiver.until, "ended: end_turn")
    finally:
        receiver.stop()


async def test_what_was_done_unasked_and_how_a_turn_ended_is_said(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, "--print", "--approve")
    try:
        config = config_of(receiver.url, "go", permissions="route")
        async with started(tmp_path, config, agent=scripted(ACTS)) as ran:
            assert (await ran.ended())[0] == 0
        told = await asyncio.to_thread(receiver.until, "unasked_effect")
        assert "done unasked: make (execute make all)" in told
        assert "stop reason end_turn" in await asyncio.to_thread(receiver.until, "turn_ended")
    finally:
        receiver.stop()


async def test_a_user_answers_and_says_more_by_hand(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, "--interactive")
    try:
        config = config_of(receiver.url, "first", permissions="route", idleTimeout=600)
        async with started(tmp_path, config, agent=ASKS) as ran:
            await asyncio.to_thread(receiver.until, "may it? first")
            receiver.type("what")
            assert "write y, n, cancel" in await asyncio.to_thread(receiver.until, "write")
            receiver.type("y")
            assert "allow_once" in await asyncio.to_thread(receiver.until, "agent_message_chunk")
            receiver.type("y")
            await asyncio.to_thread(receiver.until, "there is nothing to answer")
            receiver.type("say and another")
            await asyncio.to_thread(receiver.until, "may it? and another")
            receiver.type("n")
            assert "reject_once" in await asyncio.to_thread(receiver.until, "agent_message_chunk")
            receiver.type("end")
            assert (await ran.ended())[0] == 0
        await asyncio.to_thread(receiver.until, "prompt_complete")
    finally:
        receiver.stop()


def test_two_ways_to_answer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    told = legation(tmp_path, "receiver", "--token-file", str(tmp_path / "token"), "--approve", "--deny")
    assert (told.returncode, "give one of --approve" in told.stderr) == (2, True)
