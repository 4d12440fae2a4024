"""Servers that are stopped, killed and started again, at another port, under commands that go on: real ones, all of them."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli import LIMIT, environment, json_lines, legation, rehearse
from tests.cli.running import Running

from legation.client import Legation

pytestmark = pytest.mark.heavy  # servers and processes, several for each test

ENDS = pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
AWAY, BACK = "the server went away, waiting for it", "the server is back"


class Restarted:
    """One after the other on the same folder, each at a port of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server = self._started()

    def _started(self) -> Running:
        server = Running(self.home, "up", "--port", "0")
        server.line()
        return server

    def end(self, by: signal.Signals) -> None:
        self.server.stop(by)

    def start(self) -> None:
        self.server = self._started()

    def again(self, end: signal.Signals) -> None:
        self.end(end)
        self.start()


@pytest.fixture
def restarted(home: Path) -> Iterator[Restarted]:
    servers = Restarted(home)
    try:
        yield servers
    finally:
        servers.end(signal.SIGKILL)


class Piped:
    """A command that goes on: the lines that it says, and what it complains of."""

    def __init__(self, home: Path, *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "legation", *argv],
            env=environment(home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._said = {self.process.stdout.fileno(): b"", self.process.stderr.fileno(): b""}

    @property
    def out(self) -> str:
        return next(iter(self._said.values())).decode()

    @property
    def err(self) -> str:
        return list(self._said.values())[1].decode()

    def until(self, out: str = "", err: str = "") -> None:
        self.until_true(lambda: out in self.out and err in self.err)

    def until_true(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not done():
            ready, _, _ = select.select(list(self._said), [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"it said nothing in time: {self._said}"
            for fd in ready:
                piece = os.read(fd, 65536)
                assert piece, f"it ended: {self._said}"
                self._said[fd] += piece

    @property
    def events(self) -> list[dict[str, Any]]:
        return json_lines(self.out[: self.out.rfind("\n") + 1])

    def end(self, by: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(by)
        try:
            return self.process.wait(LIMIT)
        finally:
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()


@contextmanager
def piped(home: Path, *argv: str) -> Iterator[Piped]:
    command = Piped(home, *argv)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.end(signal.SIGKILL)


def session(home: Path, name: str = "mine", *steps: str) -> str:
    """With a first turn that is over."""
    done = legation(home, "sessions", "new", "rehearsal", rehearse(*(steps or ("say hello",))), "--id", name)
    assert done.returncode == 0, done.stderr
    return name


def send(home: Path, name: str, *steps: str) -> None:
    sent = legation(home, "sessions", "send", name, rehearse(*steps))
    assert sent.returncode == 0, sent.stderr


def row_of(home: Path, name: str = "mine") -> dict[str, Any]:
    listed = legation(home, "sessions", "--json")
    assert listed.returncode == 0, listed.stderr
    (row,) = [each for each in json_lines(listed.stdout) if each["sessionId"] == name]
    return row


# Followers.


@ENDS
@pytest.mark.parametrize(
    "words", [("events", "mine", "--follow", "--json"), ("sessions", "tail", "mine", "--json")]
)
def test_whoever_follows_a_session_goes_on_after_each_restart_with_nothing_lost_or_doubled(
    restarted: Restarted, home: Path, end: signal.Signals, words: tuple[str, ...]
) -> None:
    session(home)
    with piped(home, *words) as follower:
        follower.until(out="hello")
        for number in (1, 2):
            restarted.end(end)
            follower.until(err=AWAY)
            restarted.start()
            send(home, "mine", f"say turn-{number}")
            follower.until(out=f"turn-{number}", err=BACK)
            assert follower.err.count(AWAY) == follower.err.count(BACK) == number
        numbers = [event["seq"] for event in follower.events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert follower.end() == 130  # by Ctrl-C


def test_ctrl_c_ends_whoever_waits_for_the_server(restarted: Restarted, home: Path) -> None:
    session(home)
    with piped(home, "sessions", "tail", "mine") as tail, piped(home, "events", "mine", "--follow") as events:
        tail.until(out="hello")
        events.until(out="hello")
        restarted.end(signal.SIGKILL)
        for each in (tail, events):
            each.until(err=AWAY)
            assert each.end() == 130


@ENDS
def test_the_watch_over_approvals_goes_on_in_a_pipe(
    restarted: Restarted, home: Path, end: signal.Signals
) -> None:
    session(home)
    with piped(home, "approvals", "watch", "--json", "--after", "0") as watch:
        legation(home, "sessions", "send", "mine", rehearse("ask write a.txt one"), "--detach")
        watch.until(out='"pending"')
        restarted.end(end)
        watch.until(err=AWAY)
        restarted.start()
        watch.until(err=BACK)
        (asked,) = {event["id"] for event in watch.events}
        legation(home, "sessions", "send", "mine", rehearse("ask write b.txt two"), "--detach")
        watch.until_true(lambda: {event["id"] for event in watch.events} > {asked})
        numbers = [event["seq"] for event in watch.events]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_client_that_found_its_server_finds_the_next_one(restarted: Restarted, home: Path) -> None:
    data = restarted.server.data_dir
    with Legation.find(data) as client:
        former = client.info()
        restarted.again(signal.SIGKILL)
        assert client.info().pid != former.pid  # a GET
        restarted.again(signal.SIGTERM)
        session(home)
        assert client.tokens.create(
            "a program"
        ).secret  # a POST: the server that was asked first is not there
        assert [each.session_id for each in client.sessions.list()] == ["mine"]
        assert client.url == restarted.server.server_file().url
