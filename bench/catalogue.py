"""Every benchmark: its candidates, and the targets they are held to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.flood import BIG_LINE, SMALL_LINE
from bench.harness import Benchmark, Candidate, Target, metric, over, times
from bench.measure import CPU, RATE

# Enough to run for a second or more; the SDK is slower by an order, so it gets fewer of the same lines.
FLOOD, FLOOD_TO_DISK, FLOOD_OF_SDK = "500000", "400000", "60000"
FLOOD_OF_SESSIONS = "200000"
BIG_LINES = "200"
READERS, FLAT_OUT = "500", "0"
MB_RATE = "MB/s"


def _log(store: str, events: str) -> Candidate:
    return Candidate(f"legation-{store}", "bench.flood_log", (store, events, str(SMALL_LINE)))


def _start(name: str, *args: str) -> Candidate:
    return Candidate(name, "bench.start", args)


BARE = Candidate("bare-splitter", "bench.flood_bare", (FLOOD, str(SMALL_LINE)), counterpart=True)
SDK = Candidate("acp-python-sdk", "bench.flood_sdk", (FLOOD_OF_SDK,), counterpart=True)
MEMORY = _log("memory", FLOOD)
SQLITE = _log("sqlite", FLOOD_TO_DISK)
JSONL = _log("jsonl", FLOOD_TO_DISK)
HOST = Candidate("legation-host", "bench.flood_host", (FLOOD,))
ONE_SESSION = Candidate("1-session", "bench.sessions", ("1", FLOOD_OF_SESSIONS))
MANY_SESSIONS = Candidate("200-sessions", "bench.sessions", ("200", FLOOD_OF_SESSIONS))
BIG = Candidate("legation-1MB", "bench.flood_log", ("memory", BIG_LINES, str(BIG_LINE)))
BIG_BARE = Candidate("bare-splitter-1MB", "bench.flood_bare", (BIG_LINES, str(BIG_LINE)), counterpart=True)
REPLAY_SQLITE = Candidate("replay-sqlite", "bench.replay", ("sqlite",))
REPLAY_JSONL = Candidate("replay-jsonl", "bench.replay", ("jsonl",))
RUNNER_EVENTS = "50000"
RUNNER_HOST = Candidate("host-of-runner", "bench.runner", ("host", RUNNER_EVENTS, "call"))
RUNNER_SMALL = Candidate("runner-8-KB-snapshot", "bench.runner", ("runner", RUNNER_EVENTS, "call"))
RUNNER_HOST_CAP = Candidate("host-of-runner-at-cap", "bench.runner", ("host", RUNNER_EVENTS, "message"))
RUNNER_CAP = Candidate("runner-snapshot-at-cap", "bench.runner", ("runner", RUNNER_EVENTS, "message"))
RUNNER_DOWN = Candidate("runner-caller-down", "bench.runner", ("down",))
ACKS_50 = Candidate("50-sessions", "bench.acks", ("50",))
ACKS_500 = Candidate("500-sessions", "bench.acks", ("500",))
START_PYTHON = Candidate("python-alone", "bench.start", ("-c", "pass"), counterpart=True)
START_VERSION = _start("legation-version", "-m", "legation", "--version")
START_HELP = _start("legation-help", "-m", "legation", "--help")
SSE_HUB = Candidate("sse-hub", "bench.sse", ("hub", READERS, "10000", FLAT_OUT))
SSE_PACED = Candidate("sse-hub-paced", "bench.sse", ("hub", READERS, "5000", "0.02"))
SSE_QUEUE = Candidate(
    "sse-queue-per-reader", "bench.sse", ("queue", READERS, "1000", FLAT_OUT), counterpart=True
)
UP = Candidate("legation-up", "bench.up")
SERVED_WITH = (
    "uvicorn, starlette.applications, msgspec, uvloop, cryptography.hazmat.primitives.ciphers.aead, sqlite3"
)
IMPORTS = Candidate("imports-alone", "bench.start", ("-c", f"import {SERVED_WITH}"), counterpart=True)
PAGE = Candidate("dashboard", "bench.page")
APPROVALS_SQLITE = Candidate("approvals-sqlite", "bench.approvals", ("sqlite",))
APPROVALS_POSTGRES = Candidate("approvals-postgres", "bench.approvals", ("postgres",))
PASSED = (
    Candidate("passed-1", "bench.passed", ("flood", "1", "100000", "50")),
    Candidate("passed-50", "bench.passed", ("flood", "50", "20000", "50")),
    Candidate("passed-paced-50", "bench.passed", ("paced", "50", "600", "50")),
    Candidate("passed-stored-20", "bench.passed", ("stored", "20", "40000", "50")),
)
RUNS_STEPS = Candidate("runs-steps", "bench.runs", ("steps",))
RUNS_RIVAL = Candidate("procrastinate", "bench.runs", ("procrastinate",), counterpart=True)
RUNS_EMPTY = Candidate("runs-empty-claim", "bench.runs", ("empty",))
RUNS_PICKUP = Candidate("runs-pick-up", "bench.runs", ("pickup",))
RUNS_IDLE = Candidate("runs-idle", "bench.runs", ("idle",))
HOT_SQLITE = Candidate("hot-sqlite", "bench.hot", ("sqlite",))
HOT_POSTGRES = Candidate("hot-postgres", "bench.hot", ("postgres",))
SUBMIT_SQLITE = Candidate("submissions-sqlite", "bench.submissions", ("sqlite", "1"))
SUBMIT_POSTGRES = Candidate("submissions-postgres", "bench.submissions", ("postgres", "1"))
SUBMIT_BATCHES = Candidate("submissions-batches-postgres", "bench.submissions", ("postgres", "100"))
INSTALL = Candidate("base-install", "bench.install")
POSTS = "24000"
HTTP = Candidate("legation-http", "bench.http_post", ("legation", POSTS))
HTTP_FASTAPI = Candidate("fastapi-http", "bench.http_post", ("fastapi", POSTS), counterpart=True)
HTTP_BARE = Candidate("bare-asgi", "bench.http_post", ("bare", POSTS), counterpart=True)
CPU_REQUEST = "CPU µs/request"
POLICY = Candidate("policy-tools", "bench.policy", ("product", "tools"))
POLICY_NAIVE = Candidate("policy-naive-scan", "bench.policy", ("naive", "tools"), counterpart=True)
POLICY_COMMAND = Candidate("policy-command", "bench.policy", ("product", "command"))
POLICY_REGEX = Candidate("policy-regex", "bench.policy", ("bound", "regex"))
POLICY_RULES = Candidate("policy-rules", "bench.policy", ("bound", "rules"))
POLICY_PATH = Candidate("policy-path", "bench.policy", ("product", "path"))
CPU_DECISION = "CPU µs/decision"
EVENTS_50B = Candidate("session-events-50B", "bench.session_events", ("flood", "1", "100000", "50"))
EVENTS_1KB = Candidate("session-events-1KB", "bench.session_events", ("flood", "1", "100000", "1000"))
EVENTS_BURST = Candidate("session-events-burst", "bench.session_events", ("burst", "50", "2000", "50"))
EVENTS_PAGES = Candidate("session-events-pages", "bench.session_events", ("replay", "50000", "1000"))
EVENTS_LINE = Candidate("session-events-line", "bench.session_events", ("line",))
HOSTILE = tuple(
    Candidate(f"beside-{kind}", "bench.hostile", (kind,))
    for kind in (
        "answers", "strangers", "unreadable", "broken", "empty", "unknown-requests", "permissions", "tool-calls",
        "small-chunks", "one-message", "stderr", "deep", "deep-junk", "mib-objects", "mid-objects", "mid-permission",
        "long-objects", "long-text", "long-bytes", "long-junk", "returns", "long-answer", "long-permission", "long-write",
    )
)  # fmt: skip
SLICE, WORST, LATE = "slice ms", "worst ms", "times what it may be late"


def _rival(what: str, side: str, *args: str) -> Candidate:
    name, is_theirs = "-".join((side, what, *args)), side == "sandbox-agent"
    return Candidate(name, "bench.rival", (what, side, *args), counterpart=is_theirs)


SIDES = ("sandbox-agent", "legation-acp", "legation-sessions")
FLOOD_50B = [_rival("flood", side, "1", "20000", "50") for side in SIDES]
FLOOD_1KB = [_rival("flood", side, "1", "20000", "1000") for side in SIDES]
BURST_1 = [_rival("flood", side, "1", "2000", "50") for side in SIDES]
BURST_50 = [_rival("flood", side, "50", "2000", "50") for side in SIDES]
LINE = [_rival("line", side) for side in SIDES]
WRITTEN_ACP, WRITTEN_SESSIONS = (_rival("written", side, "50000", "200") for side in SIDES[1:])
# Longer than a burst: processor time is counted in hundredths of a second.
READERS_ACP, READERS_SESSIONS = (_rival("flood", side, "50", "60000", "50") for side in SIDES[1:])
BYTES_UPDATE = "B/update"
RIVAL_REPLAY = Candidate("legation-replay", "bench.rival", ("replay", "50000", "1000"))
MEMORY_THEIRS = _rival("memory", "sandbox-agent", "1000")
MEMORY_OURS = _rival("memory", "legation-sessions", "1000")


def _against(what: str, sides: list[Candidate], rate: float | None) -> tuple[Target, ...]:
    theirs, *ours = sides
    return tuple(
        target
        for each, name in zip(ours, ("acp", "sessions"), strict=True)
        for target in (
            Target(f"{what}, {name}: times its events/s", times(each, theirs, RATE), bound=rate),
            Target(f"{what}, {name}: part of its CPU", times(each, theirs, CPU), "at most", 1),
            Target(f"{what}, {name}: lost %", metric(each, "lost %"), "at most", 0),
        )
    )


BENCHMARKS = (
    Benchmark(
        "pipe-memory",
        "an agent's flood -> pipe -> driver -> memory log -> one subscriber",
        (MEMORY, BARE, SDK),
        (
            Target("events/s", metric(MEMORY, RATE), bound=100_000),
            Target("times the SDK", times(MEMORY, SDK, RATE), bound=8),
            Target("times the SDK, by CPU", times(SDK, MEMORY, CPU)),
            Target("of the bare splitter", times(MEMORY, BARE, RATE), bound=1 / 3),
            Target("of the bare splitter, by CPU", times(BARE, MEMORY, CPU)),
        ),
    ),
    Benchmark(
        "pipe-sqlite",
        "the same flood, every event on the disk (SQLite, synchronous=FULL) before it is seen",
        (SQLITE, SDK),
        (
            Target("acknowledged events/s", metric(SQLITE, RATE), bound=60_000),
            Target("times the SDK, which stores nothing", times(SQLITE, SDK, RATE), bound=6),
            Target("times the SDK, by CPU", times(SDK, SQLITE, CPU)),
        ),
    ),
    Benchmark("pipe-jsonl", "the same flood into JSONL files, with fdatasync", (JSONL,)),
    Benchmark(
        "host",
        "the same flood through the whole host: session, turn, watch",
        (HOST, MEMORY),
        (Target("CPU, as a multiple of the log alone", times(HOST, MEMORY, CPU), "at most", 1.5),),
    ),
    Benchmark(
        "sessions",
        "one rehearsal agent that floods 200 sessions at once, against one session, through the whole host",
        (MANY_SESSIONS, ONE_SESSION),
        (
            Target(
                "CPU, as a multiple of one session", times(MANY_SESSIONS, ONE_SESSION, CPU), "at most", 1.25
            ),
        ),
    ),
    Benchmark(
        "big-lines",
        "lines of 1 MB -> pipe -> driver -> memory log -> one subscriber",
        (BIG, BIG_BARE),
        (
            Target("MB/s", metric(BIG, MB_RATE), bound=200),
            Target("of the bare splitter", times(BIG, BIG_BARE, MB_RATE)),
        ),
    ),
    Benchmark(
        "replay",
        "a subscriber from the middle of a million stored events",
        (REPLAY_SQLITE, REPLAY_JSONL),
        (
            Target("events/s from SQLite", metric(REPLAY_SQLITE, RATE), bound=300_000),
            Target("events/s from JSONL", metric(REPLAY_JSONL, RATE), bound=300_000),
        ),
    ),
    Benchmark(
        "ack-latency",
        "sessions on SQLite that each wait for the disk before the next event",
        (ACKS_50, ACKS_500),
    ),
    Benchmark(
        "sse",
        "one stream in bursts of 20 to 500 readers over HTTP, against a queue for each reader",
        (SSE_HUB, SSE_PACED, SSE_QUEUE),
        (
            Target("delivered events/s", metric(SSE_HUB, RATE), bound=500_000),
            Target("CPU µs/event at 500,000 a second", metric(SSE_PACED, CPU), "at most", 2),
            Target("times a queue per reader", times(SSE_HUB, SSE_QUEUE, RATE)),
            Target("times a queue per reader, by CPU", times(SSE_QUEUE, SSE_HUB, CPU)),
        ),
    ),
    Benchmark(
        "cli-start",
        "processor time of a whole command",
        (START_VERSION, START_HELP, START_PYTHON),
        (Target("CPU seconds of --version", metric(START_VERSION, "CPU s"), "at most", 0.3),),
    ),
    Benchmark(
        "page",
        "the dashboard in Chromium: 50,000 recorded events opened and scrolled at 3,000 px/s, an ask answered by keyboard",
        (PAGE,),
        (
            Target("seconds until the last row is seen", metric(PAGE, "open s"), "at most", 2),
            Target("frames a second, median", metric(PAGE, "frames/s"), bound=50),
            Target("ms of a frame, 95th percentile", metric(PAGE, "p95 frame ms"), "at most", 34),
            Target("seconds from the ask to its answer", metric(PAGE, "asked to answered s"), "at most", 1),
        ),
        rounds=1,
        only_by_name=True,
    ),
    Benchmark(
        "up",
        "`legation up` on a folder that exists: from its start to its line, idle, and from TERM to its end",
        (UP, IMPORTS),
        (
            Target(
                "times the CPU of importing what it serves with", times(UP, IMPORTS, "CPU s"), "at most", 2
            ),
            Target("seconds until ready", metric(UP, "ready s"), "at most", 1),
            Target("MB when idle", metric(UP, "idle MB"), "at most", 60),
            Target("seconds to stop", metric(UP, "stop s"), "at most", 1),
        ),
    ),
    Benchmark(
        "approvals",
        "100,000 approvals on record, 10,000 pending: a page of 100, an answer; a decision's three steps of trace",
        (APPROVALS_SQLITE, APPROVALS_POSTGRES),
        tuple(
            Target(f"{name}: {what}", metric(candidate, what), "at most", bound)
            for name, candidate in (("SQLite", APPROVALS_SQLITE), ("Postgres", APPROVALS_POSTGRES))
            for what, bound in (("page ms", 20), ("glob page ms", 20), ("resolve ms", 10))
        ),
        rounds=1,
    ),
    Benchmark(
        "hot",
        "50 callers at one bucket, at the vault, at approvals to answer, and at the door; Postgres with fsync on",
        (HOT_SQLITE, HOT_POSTGRES),
        tuple(
            Target(f"{name}: {what}/s", metric(candidate, f"{what}/s"))
            for name, candidate in (("SQLite", HOT_SQLITE), ("Postgres", HOT_POSTGRES))
            for what in ("takes", "puts", "answers", "decisions")
        ),
    ),
    Benchmark(
        "submissions",
        "runs of 1 KB submitted over HTTP by 32 clients, beside one-row commits from 32 connections; Postgres with fsync on",
        (SUBMIT_SQLITE, SUBMIT_POSTGRES, SUBMIT_BATCHES),
        (
            Target("SQLite: submissions/s", metric(SUBMIT_SQLITE, "submissions/s"), bound=500),
            Target("Postgres: of one-row commits/s", metric(SUBMIT_POSTGRES, "of commits"), bound=0.5),
            Target("a hundred by a request: of one-row commits/s", metric(SUBMIT_BATCHES, "of commits")),
        ),
        only_by_name=True,
    ),
    Benchmark(
        "runs",
        "empty steps of four workers, fenced; a claim that finds nothing; pick-up; an idle worker. Postgres with fsync on",
        (RUNS_STEPS, RUNS_EMPTY, RUNS_PICKUP, RUNS_IDLE),
        (
            Target("steps/s", metric(RUNS_STEPS, "steps/s")),
            Target("empty claim among 500,000, ms", metric(RUNS_EMPTY, "ms, p50"), "at most", 1),
            Target(
                "pick-up beyond its commits, ms", metric(RUNS_PICKUP, "ms beyond commits, p50"), "at most", 10
            ),
            Target(
                "idle, all due in an hour, %",
                metric(RUNS_IDLE, "% of a core, due in an hour"),
                "at most",
                0.5,
            ),
            Target("idle at the cap, %", metric(RUNS_IDLE, "% of a core, at the cap"), "at most", 0.5),
        ),
        only_by_name=True,
        rounds=1,
    ),
    Benchmark(
        "runs-rival",
        "the same steps beside procrastinate's jobs; needs an interpreter that has it (bench/runs.py)",
        (RUNS_STEPS, RUNS_RIVAL),
        (
            Target(
                "steps, as a multiple of its jobs", times(RUNS_STEPS, RUNS_RIVAL, "steps/s"), "at least", 10
            ),
        ),
        only_by_name=True,
    ),
    Benchmark(
        "http-post",
        "a POST that is authenticated, validated and answered, on uvicorn with uvloop and httptools",
        (HTTP, HTTP_FASTAPI, HTTP_BARE),
        (
            Target("CPU, as a part of FastAPI's", times(HTTP, HTTP_FASTAPI, CPU_REQUEST), "at most", 1 / 3),
            Target("CPU, as a multiple of bare ASGI", times(HTTP, HTTP_BARE, CPU_REQUEST)),
        ),
    ),
    Benchmark(
        "policy",
        "one decision over 100 rules, without an approval, against a scan of all rules with fnmatch",
        (POLICY, POLICY_COMMAND, POLICY_PATH, POLICY_REGEX, POLICY_RULES, POLICY_NAIVE),
        (
            Target("CPU µs by an argument", metric(POLICY, CPU_DECISION), "at most", 20),
            Target("CPU µs of a command of two parts", metric(POLICY_COMMAND, CPU_DECISION), "at most", 20),
            Target("CPU µs of a path, on the disk", metric(POLICY_PATH, CPU_DECISION), "at most", 20),
            Target("CPU ms at the bound, by a heavy regex", metric(POLICY_REGEX, "ms"), "at most", 50),
            Target("CPU ms of 10,000 rules with a glob each", metric(POLICY_RULES, "ms"), "at most", 50),
            Target("times the scan", times(POLICY_NAIVE, POLICY, CPU_DECISION)),
        ),
    ),
    Benchmark(
        "session-events",
        "a session's projected events, on the disk first: live to one reader and to 50, in pages, one by one",
        (EVENTS_50B, EVENTS_1KB, EVENTS_BURST, EVENTS_PAGES, EVENTS_LINE),
        (
            Target("events/s of 50 bytes", metric(EVENTS_50B, RATE), bound=40_000),
            Target("events/s of 1 kB", metric(EVENTS_1KB, RATE), bound=40_000),
            Target("CPU µs/event of 50 bytes", metric(EVENTS_50B, CPU), "at most", 14),
            Target("CPU µs/event of 1 kB", metric(EVENTS_1KB, CPU), "at most", 24),
            Target("CPU s of 50,000 events in pages of 1,000", metric(EVENTS_PAGES, "CPU s"), "at most", 1),
            Target("ms from the disk to a reader", metric(EVENTS_LINE, "added ms"), "at most", 1),
        ),
    ),
    Benchmark(
        "passed",
        "a session's stream that another server on the same Postgres passes on: processor time of both",
        PASSED,
        tuple(
            Target(f"{each.name}: of the owner's", metric(each, "passing/owner"), "at most", 1)
            for each in PASSED
        ),
    ),
    Benchmark(
        "faces",
        "both surfaces of Legation, `acp` as a multiple of `sessions`: bytes that are written, 50 readers",
        (WRITTEN_ACP, WRITTEN_SESSIONS, READERS_ACP, READERS_SESSIONS),
        (
            Target(
                "bytes written for an update of 200",
                times(WRITTEN_ACP, WRITTEN_SESSIONS, BYTES_UPDATE),
                "at most",
                1.2,
            ),
            Target("CPU of 50 readers", times(READERS_ACP, READERS_SESSIONS, CPU), "at most", 1.3),
        ),
        rounds=5,
    ),
    Benchmark(
        "hostile",
        "a quiet session's lines beside an agent that means harm, of each kind; and the longest slice of the loop",
        HOSTILE,
        tuple(
            target
            for each in HOSTILE
            for target in (
                Target(f"{each.name}: longest slice, CPU ms", metric(each, SLICE), "at most", 50),
                Target(
                    f"{each.name}: p99, of the larger of 3 times its own and 50 ms",
                    metric(each, LATE),
                    "at most",
                    1,
                ),
                Target(f"{each.name}: worst ms", metric(each, WORST), "at most", 100),
            )
        ),
        only_by_name=True,
        rounds=1,
    ),
    Benchmark(
        "runner",
        "a runner's own process: a notification over an in-process host, and 100,000 while its caller is down",
        (RUNNER_HOST, RUNNER_SMALL, RUNNER_HOST_CAP, RUNNER_CAP, RUNNER_DOWN),
        (
            Target(
                "CPU µs over the host, snapshot of 8 KB", over(RUNNER_SMALL, RUNNER_HOST, CPU), "at most", 15
            ),
            Target("the same, snapshot at its cap", over(RUNNER_CAP, RUNNER_HOST_CAP, CPU), "at most", 25),
            Target("resident MB, caller down", metric(RUNNER_DOWN, "MB, down"), "at most", 80),
            Target("caught up, of the rate of bare POSTs", metric(RUNNER_DOWN, "of bare"), bound=0.5),
        ),
        only_by_name=True,
    ),
    Benchmark(
        "rival",
        "the npm sandbox-agent binary beside both surfaces of Legation: floods to one reader; needs npm once",
        (*FLOOD_50B, *FLOOD_1KB),
        (*_against("50 bytes", FLOOD_50B, 2), *_against("1 kB", FLOOD_1KB, 2)),
        only_by_name=True,
    ),
    Benchmark(
        "rival-readers",
        "the same: a burst of 2,000 events to 50 readers, and to one",
        (*BURST_50, *BURST_1),
        (
            *_against("50 readers", BURST_50, 1),
            *(
                Target(f"{name}: times one reader's events/s", times(many, one, RATE), bound=1)
                for name, many, one in zip(SIDES[1:], BURST_50[1:], BURST_1[1:], strict=True)
            ),
        ),
        only_by_name=True,
    ),
    Benchmark(
        "rival-lines",
        "the same: a line every five milliseconds, the first event of a prompt; and a replay in pages",
        (*LINE, RIVAL_REPLAY),
        (
            Target("ms of acp beyond one commit", metric(LINE[1], "added ms"), "at most", 1),
            Target("ms of sessions beyond one commit", metric(LINE[2], "added ms"), "at most", 1),
            Target("CPU s of 50,000 events in pages of 1,000", metric(RIVAL_REPLAY, "CPU s"), "at most", 1),
        ),
        only_by_name=True,
    ),
    Benchmark(
        "rival-memory",
        "1,000 sessions: Legation's without agents, the npm sandbox-agent binary's with the smallest there can be",
        (MEMORY_THEIRS, MEMORY_OURS),
        (Target("kB of a session", metric(MEMORY_OURS, "kB/session"), "at most", 64),),
        only_by_name=True,
        rounds=1,
    ),
    Benchmark(
        "install",
        "a fresh environment from requirements/run.txt; fetches packages",
        (INSTALL,),
        (
            Target("packages, Legation included", metric(INSTALL, "packages"), "at most", 30),
            Target("MB on the disk", metric(INSTALL, "MB"), "at most", 60),
        ),
        only_by_name=True,
        rounds=1,
    ),
)


def select(names: Sequence[str], parser: argparse.ArgumentParser) -> list[Benchmark]:
    if not names:
        return [each for each in BENCHMARKS if not each.only_by_name]
    by_name = {each.name: each for each in BENCHMARKS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"cannot find {', '.join(unknown)}; choose from {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]
