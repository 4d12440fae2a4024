"""The rows of `growth.py`: what is measured at each size of a record, and what must hold of the curve."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import log
from pathlib import Path
from typing import Final, Protocol

from bench.growth_server import AGENT, CALL, DEAF, FOLDER, LONG, POLICY, Home, Server, running, tool_server
from bench.measure import Sample

STARTS: Final = 3  # of servers, of which the median counts; no more than the calls
REST: Final = "1s"  # after which an agent is stopped until the next message
POLLERS: Final = 3
NEIGHBOUR: Final = 40  # of its calls
AT_ONCE: Final = 8  # sessions that are opened together

Curve = dict[int, float]  # size -> figure


class Bound(Protocol):
    @property
    def words(self) -> str: ...

    def holds(self, curve: Curve) -> bool | None:
        """None where the sizes that were measured do not say."""


@dataclass(frozen=True, slots=True)
class Flat:
    most: float = 0.1

    @property
    def words(self) -> str:
        return f"slope at most {self.most:g}"

    def holds(self, curve: Curve) -> bool | None:
        found = slope(curve)
        return None if found is None else found <= self.most


@dataclass(frozen=True, slots=True)
class Times:
    """The largest against the smallest size."""

    most: float

    @property
    def words(self) -> str:
        return f"at most {self.most:g} times the smallest"

    def holds(self, curve: Curve) -> bool | None:
        return None if len(curve) < 2 else curve[max(curve)] <= self.most * curve[min(curve)]


@dataclass(frozen=True, slots=True)
class More:
    most: float
    unit: str

    @property
    def words(self) -> str:
        return f"at most {self.most:g} {self.unit} more than the smallest"

    def holds(self, curve: Curve) -> bool | None:
        return None if len(curve) < 2 else curve[max(curve)] - curve[min(curve)] <= self.most


@dataclass(frozen=True, slots=True)
class Below:
    """At every size up to one; at any, where none is given."""

    most: float
    unit: str
    up_to: int | None = None

    @property
    def words(self) -> str:
        return f"at most {self.most:g} {self.unit}" + (f" at {self.up_to:,}" if self.up_to else "")

    def holds(self, curve: Curve) -> bool | None:
        named = [value for size, value in curve.items() if self.up_to is None or size <= self.up_to]
        if not named or (self.up_to is not None and max(curve) < self.up_to and max(named) <= self.most):
            return None
        return max(named) <= self.most


def slope(curve: Curve) -> float | None:
    """Of the line through the two largest sizes, both axes logarithmic: 0 is flat, 1 is in proportion."""
    sizes = sorted(size for size in curve if size > 0)[-2:]
    if len(sizes) < 2 or min(curve[size] for size in sizes) <= 0:
        return None
    small, large = sizes
    return log(curve[large] / curve[small]) / log(large / small)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """`store` is the kind of record that it needs, and `stored` the size of that record for one of the row's own."""

    name: str
    sizes_of: str  # what is counted
    small: tuple[int, ...]
    full: tuple[int, ...]
    metrics: tuple[Metric, ...]
    measure: Callable[[Home, int], Sample]
    store: str | None = None
    stored: Callable[[int], int] = lambda size: size
    in_sql: bool = False


def _starts(home: Home) -> int:
    return min(STARTS, home.calls)


# The record of decisions.


def approvals(home: Home, _size: int) -> Sample:
    with asking(home) as (server, ask):
        sample = {ASKED.name: server.median_ms(ask)}
        [former] = server.call("GET", "/approvals?status=denied&limit=1")
        for metric, path in (
            (PENDING, "/approvals?status=pending"),
            (DETAIL, f"/approvals/{former['id']}"),
            (APPROVALS_PAGE, "/approvals?status=denied&limit=20"),
            (TRACES_PAGE, "/traces?limit=20"),
        ):
            sample[metric.name] = server.got_ms(path)
    return sample


@contextmanager
def asking(home: Home) -> Iterator[tuple[Server, Callable[[], None]]]:
    """A server, and a call of an agent's that is asked about, approved and run."""
    with tool_server() as tool, running(home, tool_url=tool) as server:
        made = server.call("POST", "/v1/tokens", {"label": "claude", "kind": "agent"})
        authorization = f"Bearer {made['secret']}"
        head = server.call("GET", "/v1/streams/approvals/events?limit=1000")["items"]
        after = head[-1]["seq"] if head else 0
        numbers = count()
        with closing(server.follow(f"/v1/streams/approvals/sse?after={after}")) as changes:

            def ask() -> None:
                params = {"path": f"{FOLDER}/asked-{next(numbers)}.py", "content": "x" * 400}
                with ThreadPoolExecutor(1) as caller:
                    answer = caller.submit(
                        server.call, "POST", "/tool/ask.me", {"params": params}, authorization=authorization
                    )
                    found = re.search(rb"apr_\w+", changes.until(b'"happened":"proposed"'))
                    assert found is not None
                    server.call("POST", f"/approvals/{found[0].decode()}/approve", {"reasoning": "fine"})
                    assert answer.result(CALL)["result"] is True

            yield server, ask


def pollers(home: Home, _size: int) -> Sample:
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            server.call("GET", "/approvals?status=pending")

    waits = []
    with running(home) as server, ThreadPoolExecutor(POLLERS) as pool:
        polling = [pool.submit(poll) for _ in range(POLLERS)]
        try:
            for _ in range(NEIGHBOUR):
                began = time.perf_counter()
                server.call("GET", "/grants")
                waits.append(time.perf_counter() - began)
        finally:
            over.set()
        for each in polling:
            each.result(CALL)
    return {NEIGHBOUR_P50.name: statistics.median(waits) * 1000}


def replay(home: Home, calls: int) -> Sample:
    stricter = POLICY.replace("id: rest,", "id: mail, tools: gmail.*, action: deny}\n  - {id: rest,")
    with running(home) as server:

        def again() -> None:
            told = server.call("POST", "/v1/policy/replay", {"policy": stricter, "limit": calls})
            assert told["calls"] >= calls * 0.9, told["calls"]

        spent = [server.spent(again) for _ in range(_starts(home))]
    return {REPLAY.name: statistics.median(spent) / calls * 1e6}


# Sessions.


def sessions(home: Home, _size: int) -> Sample:
    """Each wake is of a session that a former server made and this one has not touched."""
    with running(home) as server:
        for number in range(home.calls + 1):
            server.call("POST", f"/v1/sessions/rest-{number}", {"agent": AGENT, "directory": FOLDER})
            server.play(f"rest-{number}")
    sample = {}
    with running(home) as server:
        for metric, path in (
            (AGENTS_LIST, "/v1/agents"),
            (SESSIONS_PAGE, "/v1/sessions?limit=20"),
            (STREAMS_PAGE, "/v1/streams?limit=20"),
            (ACP_LIST, "/v1/acp"),
        ):
            sample[metric.name] = server.got_ms(path)

        numbers = count()

        def create() -> None:
            server.call("POST", f"/v1/sessions/new-{next(numbers)}", {"agent": AGENT, "directory": FOLDER})

        sample[CREATE.name] = server.median_ms(create)
        sample[WAKE.name] = statistics.median(
            _said(server, f"rest-{number}") for number in range(home.calls + 1)
        )
    return sample


def _said(server: Server, session: str) -> float:
    """Milliseconds of a message and its turn."""
    with server.turn(session) as play:
        return server.spent(lambda: play("say 1")) * 1000


def start(home: Home, _size: int) -> Sample:
    spent, memory = [], []
    for number in range(_starts(home) + 1):  # the first one brings the store up to date
        with running(home) as server:
            if number:
                spent.append(server.settle())
                memory.append(server.memory())
    return {START.name: statistics.median(spent), START_MEMORY.name: statistics.median(memory)}


def events(home: Home, _size: int) -> Sample:
    """All of it in one session. Before anything is measured, a server has read it and added to it."""
    home.variables["LEGATION_AGENT_REST"] = REST
    with running(home) as server:
        server.play(LONG)
        last = _read(server, server.call("GET", f"/v1/sessions/{LONG}")["eventCount"], 1000)
    tails, restarted, rested = [], [], []
    tail = f"/v1/sessions/{LONG}/events?offset={last - 20}&limit=20"
    for _ in range(_starts(home)):
        with running(home) as server:
            tails.append(server.spent(lambda: server.call("GET", tail)) * 1000)
        with running(home) as server:
            restarted.append(_said(server, LONG))
    with running(home) as server:
        server.play(LONG)
        for _ in range(_starts(home)):
            _until_stopped(server)
            rested.append(_said(server, LONG))
    return {
        AFTER_REST.name: statistics.median(rested),
        AFTER_RESTART.name: statistics.median(restarted),
        TAIL.name: statistics.median(tails),
    }


def _read(server: Server, offset: int, page: int) -> int:
    """The number of the last event, all pages behind an offset having been read."""
    while True:
        found = server.call("GET", f"/v1/sessions/{LONG}/events?offset={offset}&limit={page}")
        offset = found["events"][-1]["sequence"] if found["events"] else offset
        if not found["hasMore"]:
            return offset


def _until_stopped(server: Server) -> None:
    until = time.monotonic() + CALL
    while server.children():
        if time.monotonic() > until:
            raise RuntimeError(f"an agent was not stopped within {CALL:g} s of rest")
        time.sleep(0.05)


def messages(home: Home, _size: int) -> Sample:
    with running(home) as server:
        _read(server, 0, 100)
        return {READ_MEMORY.name: server.memory()}


# What there is at one time.


def agents(home: Home, size: int) -> Sample:
    """Those that end with their input, then those that wait for a TERM of their own."""
    wall, spent = _stopped(home, AGENT, size)
    deaf, spent_deaf = _stopped(home, DEAF, size)
    return {TERM.name: wall, TERM_CPU.name: spent, TERM_DEAF.name: deaf, TERM_DEAF_CPU.name: spent_deaf}


def _stopped(home: Home, agent: str, size: int) -> tuple[float, float]:
    def create(number: int) -> None:
        server.call("POST", f"/v1/sessions/{agent}-{number}", {"agent": agent, "directory": FOLDER})

    with running(home) as server:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(create, range(size)))
        server.settle()
        assert len(server.children()) >= size
        return server.stop()


def rules(home: Home, size: int) -> Sample:
    home.prepare()
    with edited(home, size) as (server, edit):
        waits = [_longest_wait(server, partial(edit, number + 1)) for number in range(_starts(home))]
    report = home.folder / "slices"
    with edited(home, size, watch=report) as (_, edit):
        report.write_bytes(b"")  # what a start takes is not the reload's doing
        for number in range(_starts(home)):
            edit(-number - 1)
        slices = [float(line.split()[0]) for line in report.read_text().splitlines()]
    return {HEALTH.name: statistics.median(waits), SLICE.name: max(slices, default=0.0)}


@contextmanager
def edited(
    home: Home, size: int, watch: Path | None = None
) -> Iterator[tuple[Server, Callable[[int], None]]]:
    """A server with so many rules, and what changes one of them and waits until that is in force."""
    home.policy.write_text(_rules(size, 0))
    with running(home, watch=watch) as server:

        def edit(number: int) -> None:
            before = home.output.read_bytes().count(b"policies changed")
            home.policy.write_text(_rules(size, number))
            until = time.monotonic() + CALL
            while home.output.read_bytes().count(b"policies changed") == before:
                if time.monotonic() > until:
                    raise RuntimeError(f"the rules were not read again within {CALL:g} s")
                time.sleep(0.02)
            server.call("GET", "/v1/health")  # whoever is told of it has been, when this is answered

        yield server, edit


def _rules(size: int, number: int) -> str:
    kinds = (
        '{{tools: "server{0}.write_*", action: deny, when: {{amount: {{">": {0}}}}}}}',
        '{{tools: "*.danger{0}", action: human_approval}}',
        '{{tools: "edit{0}", action: allow, when: {{paths: {{glob: "**/name{0}/*.py"}}}}}}',
    )
    lines = [f"  - {kinds[place % len(kinds)].format(place)}" for place in range(size - 1)]
    return "\n".join(
        [
            "name: bench",
            'agent: "*"',
            "rules:",
            *lines,
            f"  - {{id: rest{number}, tools: '*', action: allow}}",
            "",
        ]
    )


def _longest_wait(server: Server, work: Callable[[], object]) -> float:
    """Milliseconds that a caller of `/v1/health` waited for it at most, while something was done."""
    over, longest = threading.Event(), 0.0

    def look() -> None:
        nonlocal longest
        while not over.is_set():
            began = time.perf_counter()
            server.call("GET", "/v1/health")
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.001)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            work()
        finally:
            over.set()
        looking.result(CALL)
    return longest * 1000


CPU_MS: Final = "CPU ms"
ASKED: Final = Metric("asked and approved", CPU_MS, Flat())
PENDING: Final = Metric("list of pending, empty", CPU_MS, Flat())
DETAIL: Final = Metric("an approval's detail", CPU_MS, Flat())
APPROVALS_PAGE: Final = Metric("page of approvals", CPU_MS, Flat())
TRACES_PAGE: Final = Metric("page of traces", CPU_MS, Flat())
NEIGHBOUR_P50: Final = Metric("a neighbour's GET, p50", "ms")
REPLAY: Final = Metric("replay of a call", "CPU µs")
CREATE: Final = Metric("create a session", CPU_MS, Flat())
WAKE: Final = Metric("wake one", CPU_MS, Flat())
AGENTS_LIST: Final = Metric("list agents", CPU_MS, Flat())
SESSIONS_PAGE: Final = Metric("page of sessions", CPU_MS, Flat())
STREAMS_PAGE: Final = Metric("page of streams", CPU_MS, Flat())
ACP_LIST: Final = Metric("list of /v1/acp, empty", CPU_MS)
START: Final = Metric("start", "CPU s", Times(1.3))
START_MEMORY: Final = Metric("memory then", "MB", More(20, "MB"))
AFTER_REST: Final = Metric("message after a rest", CPU_MS, Flat())
AFTER_RESTART: Final = Metric("message after a restart", CPU_MS, Flat())
TAIL: Final = Metric("first tail after a restart", CPU_MS, Flat())
READ_MEMORY: Final = Metric("memory after a whole reading", "MB", Flat())
TERM: Final = Metric("TERM to the end", "s", Below(1, "s", 100))
TERM_CPU: Final = Metric("its processor time", "CPU s")
TERM_DEAF: Final = Metric("TERM, of deaf agents", "s", Below(1, "s", 100))
TERM_DEAF_CPU: Final = Metric("its processor time, of deaf ones", "CPU s")
HEALTH: Final = Metric("longest wait of /v1/health", "ms")
SLICE: Final = Metric("longest slice of the loop", CPU_MS, Below(50, "ms"))

SESSIONS: Final = (0, 1_000, 10_000, 50_000)
STEPS: Final = (1_000, 10_000, 100_000, 1_000_000)
ROWS: Final = (
    Row(
        "approvals", "trace steps", (1_000, 10_000), STEPS,
        (ASKED, PENDING, DETAIL, APPROVALS_PAGE, TRACES_PAGE), approvals, "traces", in_sql=True,
    ),
    Row("pollers", "trace steps", (1_000, 10_000), STEPS, (NEIGHBOUR_P50,), pollers, "traces", in_sql=True),
    Row(
        "replay", "calls", (500, 5_000), (1_000, 10_000, 100_000),
        (REPLAY,), replay, "traces", lambda calls: calls * 2, in_sql=True,
    ),
    Row(
        "sessions", "sessions", (0, 500, 2_000), SESSIONS,
        (CREATE, WAKE, AGENTS_LIST, SESSIONS_PAGE, STREAMS_PAGE, ACP_LIST), sessions, "sessions",
    ),
    Row("start", "sessions", (0, 500, 2_000), SESSIONS, (START, START_MEMORY), start, "sessions"),
    Row("events", "events in one session", (1_000, 20_000), STEPS, (AFTER_REST, AFTER_RESTART, TAIL), events, "events"),
    Row("messages", "events in long messages", (25_000, 50_000), (25_000, 100_000, 400_000), (READ_MEMORY,), messages, "messages"),
    Row("agents", "live agents", (10, 40), (10, 100, 245), (TERM, TERM_CPU, TERM_DEAF, TERM_DEAF_CPU), agents),
    Row("rules", "rules", (10, 1_000), (10, 1_000, 10_000), (HEALTH, SLICE), rules),
)  # fmt: skip
