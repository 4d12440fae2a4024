"""`./dev walk`: which files and functions of the package run on five ways through it.

A way is walked in a server that runs and has walked it before, several times over; each time is from its first step until
nothing runs any more. A function is on the way if it ran every time. What ran only sometimes, because two threads met
or a timer rang, is counted by itself. The agent is a program of the standard library: what runs is the server, and
the command that answers, from its first line to its last.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPEAT = 5
WARM_UP = 3  # walks that do not count: what is made once is made then
QUIET = 0.4  # seconds without a function: then a walk is over
SILENCE = 65.0  # seconds: longer than the longest of the timers that ring in a walk
LIMIT = 90.0  # seconds for anything, on a loaded machine

# What runs by the clock and stands on nobody's way, nor does what it calls. Those that are called in a thread of their own
# are named themselves. `./dev walk silence` shows what is missing here: nothing but the store should be left, whose
# threads work for whoever asks.
TIMERS = (
    "approvals/queue.py:ApprovalQueue._end.<locals>.change",
    "approvals/calls.py:KeyedCalls._adopt_again",
    "approvals/sweep.py:ApprovalSweep.run",
    "approvals/transitions.py:expire_due",
    "approvals/transitions.py:supersede_revoked",
    "approvals/upkeep.py:_every",
    "approvals/upkeep.py:_sign",
    "approvals/policies.py:Policies.follow",
    "approvals/policies.py:PolicyWatcher._look",
    "proc/child.py:Child._live",
    "server/http/request.py:BodyReader._tick",
    "server/auth.py:TokenUses._run",
    "server/http/server.py:UvicornServer.main_loop",
    "server/inbox.py:InboxItems._follow_runs",
    "server/inbox.py:StuckRuns._watch",
    "server/sessions/agents.py:SessionAgents._stop_idle",
    "server/streaming/hub.py:Hub._keep_alive",
    "server/streaming/hub.py:Hub._check_credentials",
    "server/instance.py:_sweep_again",
    "server/installation.py:_keep_again",
    "server/installation.py:_raise_mark",
)

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: reads, tools: "*.read", action: allow}
  - {id: edits, kind: edit, action: human_approval}
  - {id: rest, action: deny, message: Leave it.}
"""

Names = frozenset[str]
Steps = Mapping[str, Names]  # the process ("server", "cli") -> what ran in it
Json = dict[str, Any]


class Peer:
    """The other end of a socket that speaks in lines."""

    def __init__(self, listening: socket.socket) -> None:
        found, _ = listening.accept()
        found.settimeout(LIMIT)
        self._socket, self._lines = found, found.makefile("rw")

    def say(self, line: str) -> None:
        self._lines.write(line + "\n")
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def hear(self) -> str:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("cannot go on: a process of the walk has ended; run it again with --keep")
        return line.rstrip("\n")


class Reader:
    """Of a live body, over a bare socket."""

    def __init__(self, place: Place, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", place.port), LIMIT)
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nauthorization: Bearer {place.token}"
        self._socket.sendall(f"{head}\r\n\r\n".encode())
        self._text = b""
        self.until(b"200 OK")

    def until(self, wanted: bytes) -> None:
        """It has come, since the last that was waited for."""
        while wanted not in self._text:
            piece = self._socket.recv(65536)
            if not piece:
                raise RuntimeError(f"cannot go on: {wanted!r} did not come, but {self._text[-300:]!r}")
            self._text += piece
        self._text = self._text.partition(wanted)[2]

    def close(self) -> None:
        self._socket.close()


@dataclass
class Place:
    """A server that runs, with all that belongs to it."""

    home: Path
    environment: Mapping[str, str]
    server: Peer
    agents: socket.socket
    stack: ExitStack
    port: int = 0
    token: str = ""
    calls: int = 0

    def call(self, method: str, path: str, body: object = None, token: str = "", **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers |= {"content-type": "application/json", "authorization": f"Bearer {token or self.token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            told = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"cannot go on: {method} {path} was answered with {answer.status} {told!r}")
        return json.loads(told) if told else None

    def request(self, path: str, method: str, params: object, **headers: str) -> Json | None:
        """Of ACP: the result, or None if nobody waits for it."""
        self.calls += 1
        message = {"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params}
        answer = self.call("POST", path, message, **headers)
        return None if answer is None else answer["result"]

    def session(self, name: str) -> Peer:
        """A session, and its agent."""
        self.call("POST", f"/v1/sessions/{name}", {"agent": "walker"})
        return self.accept()

    def accept(self) -> Peer:
        """The agent that has just been started."""
        return self.stack.enter_context(closing(Peer(self.agents)))

    def reader(self, path: str) -> Reader:
        return self.stack.enter_context(closing(Reader(self, path)))

    def command(self, *argv: str) -> tuple[str, Names]:
        """What it printed, and what ran in it."""
        noted = self.home / "noted.json"
        done = subprocess.run(
            [sys.executable, str(HERE / "walk_recorder.py"), f"={noted}", ",".join(TIMERS), *argv],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
        return done.stdout, frozenset(json.loads(noted.read_text()))

    @contextmanager
    def recorded(self, into: set[str]) -> Iterator[None]:
        """What runs in the server until nothing does."""
        self._tell("begin")
        yield
        self._tell(f"quiet {QUIET}")
        into.update(self._tell("end"))

    def _tell(self, command: str) -> Any:
        self.server.say(command)
        return json.loads(self.server.hear())


# The ways. Each is made ready once, and gives what walks it.

Walk = Callable[[], Steps]


def line_of_sessions(place: Place) -> Walk:
    agent = place.session("line")
    reader = place.reader("/v1/sessions/line/events/sse")
    place.call("POST", "/v1/sessions/line/messages", {"message": "go"})
    assert agent.hear() == "prompted"
    return _lines(place, agent, reader)


def line_of_acp(place: Place) -> Walk:
    path = "/v1/acp/walk"
    hello = {"protocolVersion": 1, "clientCapabilities": {}}
    place.request(f"{path}?agent=walker", "initialize", hello)
    agent = place.accept()
    made = place.request(path, "session/new", {"cwd": str(place.home / "work"), "mcpServers": []})
    assert made is not None
    reader = place.reader(path)
    prompt = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": "go"}]}
    place.request(path, "session/prompt", prompt, prefer="respond-async")
    assert agent.hear() == "prompted"
    return _lines(place, agent, reader)


def _lines(place: Place, agent: Peer, reader: Reader) -> Walk:
    numbers = iter(range(10**6))

    def walk() -> Steps:
        ran, text = set[str](), f"line {next(numbers)}."
        with place.recorded(ran):
            agent.say(f"line {text}")
            reader.until(text.encode())
        return {"server": frozenset(ran)}

    return walk


def permission(place: Place) -> Walk:
    agent = place.session("permission")
    reader = place.reader("/v1/sessions/permission/events/sse")
    place.call("POST", "/v1/sessions/permission/messages", {"message": "go"})
    assert agent.hear() == "prompted"
    numbers = iter(range(10**6))

    def walk() -> Steps:
        ran = set[str]()
        with place.recorded(ran):
            agent.say(f"ask {place.home / 'work'}/{next(numbers)}.txt")
            reader.until(b"permission.requested")
        [waiting] = place.call("GET", "/approvals?status=pending")
        with place.recorded(ran):
            _, ran_here = place.command("approvals", "approve", waiting["id"])
            assert agent.hear() == "answered"
            reader.until(b"permission.resolved")
        return {"server": frozenset(ran), "cli": ran_here}

    return walk


def message(place: Place) -> Walk:
    agent = place.session("message")

    def walk() -> Steps:
        ran = set[str]()
        with place.recorded(ran):
            place.call("POST", "/v1/sessions/message/messages", {"message": "go"})
            assert agent.hear() == "prompted"
        agent.say("end")
        until = time.monotonic() + LIMIT
        while place.call("GET", "/v1/sessions/message")["busy"]:
            if time.monotonic() > until:
                raise RuntimeError("cannot go on: the turn does not end; run it again")
            time.sleep(0.02)
        return {"server": frozenset(ran)}

    return walk


def tool_call(place: Place) -> Walk:
    printed, _ = place.command("tokens", "new", "walker", "--kind", "agent", "--json")
    token = json.loads(printed)["secret"]

    def walk() -> Steps:
        ran = set[str]()
        with place.recorded(ran):
            answer = place.call("POST", "/tool/walk.read", {"params": {"name": "x"}}, token)
            assert answer["result"] == {"read": True}, answer
        return {"server": frozenset(ran)}

    return walk


def silence(place: Place) -> Walk:
    """A connection, a session that waits for an answer, and nobody who reads: a reader is woken by the clock too."""
    place.request("/v1/acp/walk?agent=walker", "initialize", {"protocolVersion": 1})
    place.accept()
    agent = place.session("silence")
    place.call("POST", "/v1/sessions/silence/messages", {"message": "go"})
    assert agent.hear() == "prompted"
    agent.say(f"ask {place.home / 'work'}/x.txt")

    def walk() -> Steps:
        with place.recorded(set()):
            pass
        ran = set[str]()
        with place.recorded(ran):
            time.sleep(SILENCE)
        return {"server": frozenset(ran)}

    return walk


WAYS: dict[str, tuple[str, Callable[[Place], Walk]]] = {
    "sessions-line": ("an agent's line to an SSE reader of /v1/sessions", line_of_sessions),
    "acp-line": ("an agent's line to an SSE reader of /v1/acp", line_of_acp),
    "permission": ("an agent's question, `legation approvals approve`, and back", permission),
    "message": ("a message to the agent that runs", message),
    "tool-call": ("a tool call through the door, and its result", tool_call),
}
NO_WAY = {
    "silence": (f"{SILENCE:g} seconds of nothing, only by name: what runs is a timer to be named", silence)
}


# The server.


class _Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # kept open, as a tool's connection is

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"read":true}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(home: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        (home / "work").mkdir(parents=True)
        tool = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Tool))
        threading.Thread(target=tool.serve_forever, daemon=True).start()
        stack.callback(tool.shutdown)
        agents, servers = _listening(stack, home / "agents"), _listening(stack, home / "servers")
        environment = _environment(home, tool.server_address[1])
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, HERE / "walk_recorder.py", home / "servers", ",".join(TIMERS), "server"],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        stack.callback(_stop, process)
        place = Place(home, environment, stack.enter_context(closing(Peer(servers))), agents, stack)
        told = _until_up(home, process)
        place.port, place.token = int(told["url"].rpartition(":")[2]), told["token"]
        yield place


def _environment(home: Path, tool: int) -> dict[str, str]:
    argv = ["-S", "-E", str(HERE / "walk_agent.py"), str(home / "agents")]
    files = {
        "POLICY": ("policy.yaml", POLICY),
        "TOOLS": (
            "tools.yaml",
            f'tools: [{{name: walk.read, url: "http://127.0.0.1:{tool}/", kind: read}}]\n',
        ),
        "AGENTS": ("agents.toml", f"[agents.walker]\ncommand = {sys.executable!r}\nargs = {argv!r}\n"),
    }
    for name, text in files.values():
        (home / name).write_text(text)
    settings = {f"LEGATION_{key}": str(home / name) for key, (name, _) in files.items()}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "LEGATION_PORT": "0",
        "LEGATION_DATA_DIR": str(home / "data"),
        "LEGATION_FOLDERS": str(home / "work"),
        **settings,
    }


def _listening(stack: ExitStack, place: Path) -> socket.socket:
    made = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
    made.bind(str(place))
    made.listen()
    made.settimeout(LIMIT)
    return made


def _until_up(home: Path, process: subprocess.Popen[bytes]) -> Json:
    until = time.monotonic() + LIMIT
    while not (home / "data/server.json").exists():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(f"walk: cannot start the server:\n{(home / 'output').read_text()}")
        time.sleep(0.02)
    found: Json = json.loads((home / "data/server.json").read_bytes())
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# What was found.


@dataclass(frozen=True)
class Found:
    """`always` and `sometimes`: by process, what ran in all of the walks and in some."""

    always: Steps
    sometimes: Steps = field(default_factory=dict)

    @classmethod
    def of(cls, walks: list[Steps]) -> Found:
        always = {name: frozenset.intersection(*[each[name] for each in walks]) for name in walks[0]}
        every = {name: frozenset.union(*[each[name] for each in walks]) for name in walks[0]}
        return cls(always, {name: every[name] - always[name] for name in every})

    @property
    def functions(self) -> Names:
        return frozenset().union(*self.always.values())

    @property
    def files(self) -> Names:
        return frozenset(name.partition(":")[0] for name in self.functions)

    def plain(self) -> Json:
        def lists(steps: Steps) -> Json:
            return {name: sorted(each) for name, each in steps.items()}

        return {
            "files": len(self.files),
            "functions": len(self.functions),
            "always": lists(self.always),
            "sometimes": lists(self.sometimes),
        }


def walked(ways: list[str], repeat: int) -> dict[str, Found]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="legation-walk-") as made:
        for way in ways:
            print(f"walk: {way}", file=sys.stderr, flush=True)
            with served(Path(made) / way) as place:  # its own: nothing of another way goes on in it
                walk = (WAYS | NO_WAY)[way][1](place)
                if way in NO_WAY:
                    found[way] = Found.of([walk()])
                    continue
                for _ in range(WARM_UP):
                    walk()
                found[way] = Found.of([walk() for _ in range(repeat)])
    return found


def table(found: Mapping[str, Found], before: Mapping[str, Json]) -> str:
    head = f"{'way':16}{'files':>8}{'functions':>11}{'now and then':>14}"
    lines = [head + (f"{'files before':>14}{'ratio':>8}{'functions':>11}{'ratio':>8}" if before else "")]
    for way, each in found.items():
        now_and_then = sum(len(names) for names in each.sometimes.values())
        line = f"{way:16}{len(each.files):>8}{len(each.functions):>11}{now_and_then:>14}"
        if way in before:
            files, functions = before[way]["files"], before[way]["functions"]
            line += f"{files:>14}{len(each.files) / files:>8.2f}"
            line += f"{functions:>11}{len(each.functions) / functions:>8.2f}"
        lines.append(line)
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    ways = "\n".join(f"  {name:16}{what}" for name, (what, _) in (WAYS | NO_WAY).items())
    found = argparse.ArgumentParser(
        prog="./dev walk",
        description=f"{__doc__}\nThe ways:\n{ways}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("ways", nargs="*", metavar="WAY", help="which to walk; without one, all")
    found.add_argument("--repeat", type=int, default=REPEAT, help=f"how often each is walked ({REPEAT})")
    found.add_argument("--json", type=Path, metavar="FILE", help="where to write the names of what ran")
    found.add_argument("--before", type=Path, metavar="FILE", help="such a file, to compare with")
    return found


def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    unknown = [way for way in options.ways if way not in WAYS | NO_WAY]
    if unknown or options.repeat < 1:
        parser().error(f"cannot walk {', '.join(unknown) or 'less than once'}; see --help")
    before = json.loads(options.before.read_text()) if options.before else {}
    found = walked(options.ways or list(WAYS), options.repeat)
    if options.json:
        text = json.dumps({way: each.plain() for way, each in found.items()}, indent=1)
        options.json.write_text(text + "\n")
    print(table(found, before))


if __name__ == "__main__":
    main()
