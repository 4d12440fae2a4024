"""Servers that are stopped, killed and started again, at another port, under commands that go on: real ones, all of them."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.command import LIMIT, AtTerminal, environment, json_lines, legation, rehearse
from tests.cli.command_server import ForkedCommand
from tests.cli.screen import at_screen
from tests.cli.server_process import Running

from legation.client import Legation
from legation.errors import STATUS, Code

pytestmark = pytest.mark.heavy  # servers and processes, several for each test

ENDS = pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])


def paired(cases: list[tuple[str, ...]]) -> list[Any]:
    """Two cases with both ends: every day each case and each end once, in the long run all four."""
    both = [(end, case) for end in (signal.SIGTERM, signal.SIGKILL) for case in cases]
    return [
        pytest.param(
            end, case, id=f"{end.name}-{case[0]}", marks=pytest.mark.slow if number in (1, 2) else ()
        )
        for number, (end, case) in enumerate(both)
    ]


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
        self.process = ForkedCommand(argv, environment(home), home)
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


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline


# Followers.


@pytest.mark.parametrize(
    ("end", "words"),
    paired([("events", "mine", "--follow", "--json"), ("sessions", "tail", "mine", "--json")]),
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


# What was asked.


@pytest.mark.parametrize(
    ("end", "asked"),
    paired([("ask write a.txt one", "[c]ancel the turn: "), ("elicit Name? who:string", "no answer): ")]),
)
def test_a_question_at_the_terminal_is_taken_back_with_a_word_on_what_happened(
    restarted: Restarted, home: Path, end: signal.Signals, asked: tuple[str, str]
) -> None:
    step, asks = asked
    terminal = AtTerminal(home, "sessions", "new", "rehearsal", rehearse(step), "--id", "mine")
    try:
        terminal.until(asks)
        restarted.end(end)
        terminal.until("(no longer asked")
        terminal.until(AWAY)
        terminal.type("y\n")  # goes nowhere
        restarted.start()
        terminal.until(BACK)
        assert terminal.end() == STATUS[Code.AGENT_ERROR].exit  # the turn's
    except BaseException:
        terminal.kill()
        raise
    assert terminal.text.count(asks) == 1
    how = "stopped" if end is signal.SIGTERM else "restarted"
    assert f"the server was {how} while it ran" in " ".join(terminal.text.split())
    tail = (
        legation(home, "sessions", "terminate", "mine").returncode,
        legation(home, "sessions", "tail", "mine", "--json"),
    )
    (answered,) = [event for event in json_lines(tail[1].stdout) if event["type"].endswith("-answered")]
    assert answered["raw"]["outcome"] in ("superseded", "cancelled")
    assert "the server" in answered["raw"]["reason"]


def test_what_waited_when_the_server_was_killed_is_shown_as_superseded_with_the_reason(
    restarted: Restarted, home: Path
) -> None:
    session(home)
    with at_screen(home, None, columns=160) as screen, piped(home, "approvals", "watch") as watch:
        legation(home, "sessions", "send", "mine", rehearse("ask write a.txt one"), "--detach")
        watch.until(out="pending")
        (asked,) = json_lines(legation(home, "approvals", "--json").stdout)
        screen.asked(asked["id"])
        restarted.end(signal.SIGKILL)
        screen.until("the server went away")
        screen.until(lambda _: "[y]" not in screen.question)
        screen.type("y")  # goes nowhere
        restarted.start()
        why = "the server was restarted while it waited for an answer"
        shown = screen.until("nothing to answer here")
        assert f"superseded: {why}" in " ".join(shown.split())
        screen.type("q")
        assert screen.end() == 0
        watch.until(out=why)
    (row,) = json_lines(legation(home, "approvals", "--all", "--json").stdout)
    assert (row["status"], row["resolved_by"], row["why"]) == ("superseded", None, why)
    assert why in legation(home, "approvals", "--all").stdout
    assert why in legation(home, "approvals", "show", asked["id"]).stdout
    late = legation(home, "approvals", "approve", asked["id"])
    assert late.returncode == STATUS[Code.ALREADY_ANSWERED].exit
    assert why in late.stderr


# Turns that were cut.


def cut_off(home: Path) -> None:
    """A turn that runs, in a session of its own."""
    session(home)
    legation(home, "sessions", "send", "mine", rehearse("say going", "stall 600"), "--detach")
    with piped(home, "sessions", "tail", "mine") as tail:
        tail.until(out="going")


def acp_list(server: Running) -> list[dict[str, Any]]:
    found = server.server_file()
    headers = {"authorization": f"Bearer {found.token}"}
    with httpx2.Client(base_url=found.url, headers=headers, timeout=LIMIT) as http:
        return list(_call(http, "session/list", {})["sessions"])


def _call(http: httpx2.Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = http.post("/v1/acp/editor", params={"agent": "rehearsal"}, json=message)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["result"])


def everywhere(restarted: Restarted) -> list[bool]:
    """Whether each of the lists says that the last turn of the one session was cut."""
    home = restarted.home
    with Legation.find(restarted.server.data_dir) as client:
        api = [client.sessions.list()[0].cut, client.sessions.get("mine").info().cut]
    listed = acp_list(restarted.server)
    words = (("sessions",), ("sessions", "show", "mine"), ("events",))
    return [
        *(each is not None for each in api),
        row_of(home)["cut"] is not None,
        *("turn cut" in legation(home, *each).stdout for each in words),
        "cut" in listed[0].get("_meta", {}).get("legation", {}),
    ]


@ENDS
def test_a_session_whose_turn_was_cut_says_so_in_every_list_until_its_next_turn(
    restarted: Restarted, home: Path, end: signal.Signals
) -> None:
    cut_off(home)
    assert not any(everywhere(restarted))
    began = time.time() * 1000
    restarted.again(end)
    assert all(everywhere(restarted))
    row = row_of(home)
    how = "stopped" if end is signal.SIGTERM else "restarted"
    assert f"the server was {how} while it ran" in row["cut"]["reason"]
    assert began <= row["cut"]["at"] <= time.time() * 1000
    assert (row["busy"], row["status"]) == (False, "disconnected")
    restarted.again(signal.SIGKILL)  # nothing ran: it is said as long as nothing came after it
    assert row_of(home)["cut"] == row["cut"]
    send(home, "mine", "say next")
    assert not any(everywhere(restarted))
    restarted.again(end)  # a turn that was over is not cut
    assert not any(everywhere(restarted))


@ENDS
def test_a_turn_that_an_acp_client_began_is_ended_and_told_as_cut(
    restarted: Restarted, home: Path, end: signal.Signals
) -> None:
    found = restarted.server.server_file()
    headers = {"authorization": f"Bearer {found.token}"}
    with httpx2.Client(base_url=found.url, headers=headers, timeout=LIMIT) as http:
        _call(http, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        name = _call(http, "session/new", {"cwd": str(home), "mcpServers": []})["sessionId"]
        prompt = [{"type": "text", "text": rehearse("say going", "stall 600")}]
        asked = {"jsonrpc": "2.0", "id": 2, "method": "session/prompt"}
        sent = http.post(
            "/v1/acp/editor",
            json={**asked, "params": {"sessionId": name, "prompt": prompt}},
            headers={"prefer": "respond-async"},
        )
        assert sent.status_code == 202, sent.text
    with piped(home, "sessions", "tail", name, "--json") as tail:
        tail.until(out="going")
        assert row_of(home, name)["busy"]
        restarted.end(end)
        tail.until(err=AWAY)
        restarted.start()
        tail.until(out='"prompt-finished"')  # before anybody takes the session up
        (ended,) = [event for event in tail.events if event["type"] == "prompt-finished"]
    assert ended["raw"]["error"]["data"] == {"cut": True}
    assert row_of(home, name)["cut"]["reason"] == ended["raw"]["error"]["message"]
    assert acp_list(restarted.server)[0]["_meta"]["legation"]["cut"]
    send(home, name, "say next")
    assert row_of(home, name)["cut"] is None


def test_a_turn_that_its_agents_end_cut_is_told_as_that(restarted: Restarted, home: Path) -> None:
    session(home)
    crashed = legation(home, "sessions", "send", "mine", rehearse("crash 3"))
    assert crashed.returncode == STATUS[Code.AGENT_ERROR].exit
    wait_for(lambda: row_of(home)["cut"] is not None)
    assert all(everywhere(restarted))
    send(home, "mine", "say next")
    assert not any(everywhere(restarted))
