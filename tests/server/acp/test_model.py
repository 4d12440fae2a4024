"""Sessions in any order of things that can become of them, over both faces, against one model.

Checked after every step: a session is in the state that the model says; its agent got every prompt that was accepted, once
and in order; a question waits for an answer where a turn does, and takes one; every other turn has ended. At the end
every request of every client has been answered, once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests.cli.command import LIMIT
from tests.cli.server_process import Running
from tests.server.acp.acp_server import POLICY

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

HERE: Final = Path(__file__).parent
IDLE: Final = 1900  # seconds by which the clock is moved: an agent that is seen idle twice is stopped
MOVES: Final = 40  # at most, until all are
LOOK: Final = 0.02

Status = Literal["active", "disconnected", "closed", "terminated", "deleted"]
OPEN: Final = ("active", "disconnected")
WHICH = st.integers(0, 99)
CLIENT = st.sampled_from(["one", "two"])


class Clocked(Running):
    def __init__(self, home: Path, ahead: float, fifo: Path, **env: str) -> None:
        self.program = (str(HERE / "clocked_server.py"), str(ahead), str(fifo))
        super().__init__(home, "server", "--port", "0", **env)


class Place:
    """A server for all examples, and what outlives it."""

    def __init__(self, home: Path) -> None:
        self.home, self.kept, self.work = home, home / "kept", home / "work"
        self.kept.mkdir(parents=True)
        self.work.mkdir()
        self.fifo = home / "clock"
        os.mkfifo(self.fifo)
        (home / "policy.yaml").write_text(POLICY.replace("human_approval}", "human_approval, timeout: 160h}"))
        argv = ["-S", "-E", str(HERE / "keeping_agent.py"), str(self.kept)]
        (home / "agents.toml").write_text(f"[agents.keeper]\ncommand = {sys.executable!r}\nargs = {argv!r}\n")
        self.ahead = 0.0
        self.examples = 0
        self.server: Clocked | None = None
        self.start()

    def start(self) -> None:
        env = {
            "LEGATION_POLICY": str(self.home / "policy.yaml"),
            "LEGATION_AGENTS": str(self.home / "agents.toml"),
            "LEGATION_FOLDERS": str(self.work),
        }
        self.server = Clocked(self.home, self.ahead, self.fifo, **env)
        self.server.line()
        found = self.server.server_file()
        headers = {"authorization": f"Bearer {found.token}"}
        self.http = httpx2.Client(base_url=found.url, headers=headers, trust_env=False, timeout=LIMIT)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.server is not None
        self.http.close()
        process = self.server.process
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.server.stop(signal.SIGKILL)
            raise
        assert b"defect" not in said, said.decode()  # such as a state that the host's table does not know

    def move_clock(self, seconds: float) -> None:
        self.ahead += seconds
        with self.fifo.open("w") as clock:
            clock.write(f"{seconds}\n")


@dataclass(eq=False)
class Session:
    name: str
    native: str
    status: Status = "active"
    slot: str = "own"  # or the client whose process has it
    held: str = ""  # the client, or "queue", whose turn waits for an answer
    crashed: bool = False  # its agent ended by itself, and none was started since
    queue: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)  # that its agent must have got


@dataclass(eq=False)
class Client:
    path: str
    calls: int = 0


class Machine(RuleBasedStateMachine):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        place.examples += 1
        self.sessions: list[Session] = []
        self.clients: dict[str, Client] = {}
        self.numbers = 0
        self.killed = False

    # What is done.

    @rule()
    @precondition(lambda self: len(self.sessions) < 3)
    def create(self) -> None:
        name = f"s{self.place.examples}-{self.number()}"
        answer = self.call(
            "POST", f"/v1/sessions/{name}", {"agent": "keeper", "directory": str(self.place.work)}
        )
        assert answer.status_code == 200, answer.text
        self.sessions.append(Session(name, answer.json()["nativeSessionId"]))
        self.check()

    @rule(client=CLIENT)
    @precondition(lambda self: len(self.sessions) < 3)
    def create_over_acp(self, client: str) -> None:
        made = self.request(client, "session/new", cwd=str(self.place.work), mcpServers=[])["result"]
        info = self.call("GET", f"/v1/sessions/{made['sessionId']}").json()
        self.sessions.append(Session(made["sessionId"], info["nativeSessionId"], slot=client))
        self.check()

    @rule(which=WHICH, holds=st.booleans())
    @precondition(lambda self: self.sessions)
    def message(self, which: int, holds: bool) -> None:
        session, text = self.one(which), self.words(holds)
        answer = self.call("POST", f"/v1/sessions/{session.name}/messages", {"message": text})
        if session.status in OPEN:
            assert answer.status_code == 204, answer.text
            session.queue.append(text)
            self.play(session)
        else:
            assert answer.status_code == (404 if session.status == "deleted" else 410), answer.text
        self.check()

    @rule(which=WHICH, client=CLIENT, holds=st.booleans())
    @precondition(lambda self: self.sessions)
    def prompt(self, which: int, client: str, holds: bool) -> None:
        session, text = self.one(which), self.words(holds)
        said: dict[str, Any] = {"sessionId": session.name, "prompt": [{"type": "text", "text": text}]}
        goes = session.status in OPEN and not session.held
        if goes:
            self.taken_up(session, client)
            session.prompts.append(text)
        if goes and holds:
            self.request(client, "session/prompt", later=True, **said)
            session.held = client
        else:
            answer = self.request(client, "session/prompt", **said)
            assert ("result" in answer) == goes, answer
        self.check()

    @rule(which=WHICH, first=st.sampled_from(["client", "route", "inbox"]))
    @precondition(lambda self: any(each.held for each in self.sessions))
    def answer(self, which: int, first: str) -> None:
        """By one face, and then by another; the first by the client whose turn it is, if it is one's."""
        held = [each for each in self.sessions if each.held]
        session = held[which % len(held)]
        [waiting] = [each for each in self.pending() if each["session_id"] == session.name]
        ways = [
            (f"/v1/sessions/{session.name}/permissions/{waiting['id']}/reply", {"reply": "once"}),
            (f"/approvals/{waiting['id']}/approve", {}),
        ]
        if first == "client" and session.held in self.clients:
            self.answer_as(session.held, waiting["id"])
        else:
            way = ways.pop(first == "inbox")
            taken = self.call("POST", *way)
            assert taken.is_success, taken.text
        refused = self.call("POST", *ways[0])
        assert refused.is_client_error, refused.text
        self.turn_ends(session)
        self.check()

    def answer_as(self, client: str, permission: str) -> None:
        """Every question about that: one who opens a session again is asked anew, and what was withdrawn takes no answer."""
        outcome = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        path = self.clients[client].path
        for message in self.told(client):
            if message.get("method") != "session/request_permission":
                continue
            if message["params"]["_meta"]["legation"]["permissionId"] == permission:
                response = {"jsonrpc": "2.0", "id": message["id"], "result": outcome}
                assert self.place.http.post(path, json=response).status_code == 202
                if self.until(lambda: permission not in {each["id"] for each in self.pending()}, 2):
                    return
        raise AssertionError("its answer did not count")

    @rule(which=WHICH, client=CLIENT, method=st.sampled_from(["session/load", "session/resume"]))
    @precondition(lambda self: self.sessions)
    def attach(self, which: int, client: str, method: str) -> None:
        """Also one that is closed: that opens it again."""
        session = self.one(which)
        where = str(self.place.work)
        answer = self.request(client, method, sessionId=session.name, cwd=where, mcpServers=[])
        if session.status in (*OPEN, "closed"):
            assert "result" in answer, answer
            self.taken_up(session, client)
        else:
            assert "error" in answer, answer
        self.check()

    @rule(which=WHICH, client=CLIENT, how=st.sampled_from(["close", "terminate", "delete", "DELETE"]))
    @precondition(lambda self: self.sessions)
    def end(self, which: int, client: str, how: str) -> None:
        session = self.one(which)
        if how == "close":
            self.close(session, client)
        elif how == "terminate":
            self.terminate(session)
        elif how == "delete":
            self.delete(session, client)
        else:
            self.delete_by_route(session)
        self.check()

    def close(self, session: Session, client: str) -> None:
        answer = self.request(client, "session/close", sessionId=session.name)
        if session.status in (*OPEN, "closed"):
            assert "result" in answer, answer
            self.ended(session, "closed")
        else:
            assert "error" in answer, answer

    def terminate(self, session: Session) -> None:
        answer = self.call("POST", f"/v1/sessions/{session.name}/terminate")
        if session.status == "deleted":
            assert answer.status_code == 404, answer.text
        else:
            assert answer.status_code == 204, answer.text
            self.ended(session, "terminated")

    def delete(self, session: Session, client: str) -> None:
        """Not in a turn: that is ended first."""
        answer = self.request(client, "session/delete", sessionId=session.name)
        if session.held:
            assert answer["error"]["data"]["code"] == "legation/prompt-in-flight", answer
            return
        assert "result" in answer, answer
        self.ended(session, "deleted")

    def delete_by_route(self, session: Session) -> None:
        answer = self.call("DELETE", f"/v1/sessions/{session.name}")
        if session.held:
            assert answer.status_code == 409, answer.text
        elif session.status == "deleted":
            assert answer.status_code == 404, answer.text
        else:
            assert answer.status_code == 204, answer.text
            self.ended(session, "deleted")

    @rule()
    @precondition(lambda self: self.sessions)
    def idle(self) -> None:
        """Whoever has nothing to do for long is stopped; who waits for an answer is not."""
        active = [each for each in self.sessions if each.status == "active"]
        used = {each.held for each in active} | {
            each.slot for each in active if each.held and each.slot != "own"
        }
        for session in active:
            if not session.held and (session.slot == "own" or session.slot not in used):
                session.status = "disconnected"
        for _ in range(MOVES):
            if not self.differs():
                break
            self.place.move_clock(IDLE)
            self.until(lambda: not self.differs(), 1)
        self.check()

    @rule(which=WHICH)
    @precondition(lambda self: any(each.status == "active" for each in self.sessions))
    def crash(self, which: int) -> None:
        """An agent's process is killed, with all sessions that it has."""
        active = [each for each in self.sessions if each.status == "active"]
        pid = self.process(active[which % len(active)])
        lost = [each for each in active if self.process(each) == pid]
        os.kill(pid, signal.SIGKILL)
        for each in lost:
            each.crashed = True
            self.lost(each)
        self.check()

    @rule(client=CLIENT)
    @precondition(lambda self: self.clients)
    def leave(self, client: str) -> None:
        """A client that waits for nothing goes, and its process with it."""
        if client not in self.clients or any(each.held == client for each in self.sessions):
            return
        self.must_all_be_answered(client)
        answer = self.call("DELETE", self.clients.pop(client).path)
        assert answer.status_code == 204, answer.text
        for each in self.sessions:
            if each.status == "active" and each.slot == client:
                self.lost(each)
        self.check()

    @rule()
    @precondition(lambda self: self.sessions and not self.killed)
    def kill(self) -> None:
        self.killed = True  # once in an example: a server takes its time
        self.place.stop(signal.SIGKILL)
        self.place.start()
        for each in self.sessions:
            if each.status == "active":
                self.lost(each)
        self.check()

    # What becomes of it, by the model.

    def taken_up(self, session: Session, slot: str) -> None:
        if session.status != "active":
            session.status, session.slot, session.crashed = "active", slot, False

    def play(self, session: Session) -> None:
        """What waits, until a turn holds."""
        while session.queue and not session.held:
            self.taken_up(session, "own")
            text = session.queue.pop(0)
            session.prompts.append(text)
            session.held = "queue" if text.startswith("hold") else ""

    def turn_ends(self, session: Session) -> None:
        session.held = ""
        self.play(session)

    def lost(self, session: Session) -> None:
        session.status = "disconnected"
        self.turn_ends(session)

    def ended(self, session: Session, status: Status) -> None:
        """What waited for it is not played any more."""
        session.status, session.held = status, ""
        session.queue.clear()

    # What is so.

    def check(self) -> None:
        assert self.until(lambda: not self.differs()), self.differs()

    def differs(self) -> list[str]:
        """In words; for a moment it may, since things take their time."""
        found = [difference for each in self.sessions for difference in self.differences(each)]
        held = sorted(each.name for each in self.sessions if each.held)
        mine = {each.name for each in self.sessions}
        asked = sorted(each["session_id"] for each in self.pending() if each["session_id"] in mine)
        if asked != held:
            found.append(f"asked in {asked}, not in {held}")
        listed = {each["sessionId"] for each in self.call("GET", "/v1/sessions").json()["sessions"]} & mine
        there = {each.name for each in self.sessions if each.status != "deleted"}
        if listed != there:
            found.append(f"listed are {listed}, not {there}")
        return found

    def differences(self, session: Session) -> list[str]:
        answer = self.call("GET", f"/v1/sessions/{session.name}")
        got = (self.place.kept / session.native).read_text().splitlines()
        found = [] if got == session.prompts else [f"{session}: its agent got {got}"]
        if session.status == "deleted":
            return found if answer.status_code == 404 else [*found, f"{session}: it is there"]
        info = answer.json()
        status = "closed" if session.status == "terminated" else session.status
        seen = {name: info[name] for name in ("status", "ended", "queued", "busy")}
        want = {
            "status": status,
            "ended": session.crashed or session.status not in OPEN,
            "queued": len(session.queue),
            "busy": bool(session.held),
        }
        if seen != want:
            found.append(f"{session}: it is {seen}")
        if session.status != "closed":
            events = self.call("GET", f"/v1/sessions/{session.name}/events?limit=1000").json()["events"]
            turns = Counter(each["type"] for each in events)
            if turns["turn.started"] - turns["turn.ended"] != bool(session.held):
                found.append(f"{session}: its turns are {turns}")
        return found

    def must_all_be_answered(self, client: str) -> None:
        """Once, as its stream tells."""
        found = self.clients[client]
        answers: Counter[int] = Counter()
        for message in self.told(client):
            if "method" not in message:
                answers[message["id"]] += 1
            if len(answers) == found.calls:
                break
        assert answers == Counter(range(1, found.calls + 1)), answers

    def told(self, client: str) -> Iterator[dict[str, Any]]:
        """From the beginning, for as long as it may take."""
        request = {"accept": "text/event-stream", "last-event-id": "0"}
        deadline = time.monotonic() + LIMIT
        with self.place.http.stream("GET", self.clients[client].path, headers=request) as response:
            for line in response.iter_lines():  # nothing but a sign of life comes when all was told
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
                if time.monotonic() > deadline:
                    return

    def teardown(self) -> None:
        try:
            for session in self.sessions:
                if session.status in (*OPEN, "closed"):
                    self.call("POST", f"/v1/sessions/{session.name}/terminate")
            for client in list(self.clients):
                self.must_all_be_answered(client)
        finally:
            for found in self.clients.values():
                self.call("DELETE", found.path)

    # How it is asked.

    def call(self, method: str, path: str, body: object = None) -> httpx2.Response:
        return self.place.http.request(method, path, json=body)

    def request(self, client: str, method: str, *, later: bool = False, **params: object) -> dict[str, Any]:
        """Of a client, which says hello first. `later`: nobody waits for the answer."""
        if client not in self.clients:
            self.clients[client] = Client(f"/v1/acp/m{self.place.examples}-{client}-{self.number()}")
            self.request(client, "initialize", protocolVersion=1)
        found = self.clients[client]
        found.calls += 1
        message = {"jsonrpc": "2.0", "id": found.calls, "method": method, "params": params}
        headers = {"prefer": "respond-async"} if later else {}
        answer = self.place.http.post(f"{found.path}?agent=keeper", json=message, headers=headers)
        assert answer.status_code == (202 if later else 200), answer.text
        return {} if later else answer.json()

    def pending(self) -> list[dict[str, Any]]:
        return self.call("GET", "/approvals?status=pending").json()  # type: ignore[no-any-return]

    def process(self, session: Session) -> int:
        return int((self.place.kept / f"{session.native}.pid").read_text())

    def one(self, which: int) -> Session:
        """Mostly one that is open: most of what can become of a session does so to those."""
        lively = [each for each in self.sessions if each.status in OPEN]
        some = lively if lively and which % 4 else self.sessions
        return some[which % len(some)]

    def words(self, holds: bool) -> str:
        return f"{'hold' if holds else 'say'} {self.number()}"

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def until(self, holds: Callable[[], bool], limit: float = LIMIT) -> bool:
        deadline = time.monotonic() + limit
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK)
        return True


def test_sessions_in_any_order_of_events_are_as_the_model_has_them() -> None:
    with tempfile.TemporaryDirectory() as made:
        place = Place(Path(made) / "home")
        try:
            run_state_machine_as_test(
                lambda: Machine(place),  # type: ignore[arg-type] # a factory will do
                settings=settings(
                    max_examples=6,
                    stateful_step_count=20,
                    deadline=None,
                    phases=(
                        Phase.explicit,
                        Phase.reuse,
                        Phase.generate,
                    ),  # each step is a real one: none to find the least
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            place.stop(signal.SIGKILL)
