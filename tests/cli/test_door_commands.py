"""The commands and the client with a real `legation up`: an agent's calls wait at the door, a person answers."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.cli.command import LIMIT, json_lines, legation
from tests.cli.screen import at_screen
from tests.cli.server_process import running

from legation.client import Legation
from legation.errors import AlreadyAnswered, Forbidden
from legation.wire.api.approvals import ToolReturned

pytestmark = pytest.mark.heavy  # a server, and a process for each command

POLICY = """\
name: shop
loop: off
rules:
  - {id: refunds, tools: refund, action: human_approval, timeout: 10m}
  - {id: look, tools: look, action: allow}
"""


@dataclass
class Shop:
    """A running Legation with two tools behind it, and an agent that calls them."""

    home: Path
    url: str
    owner: Legation
    agent: Legation
    called: list[Any] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def run(self, *argv: str) -> CompletedProcess[str]:
        return legation(self.home, *argv)

    def ask(self, amount: int) -> tuple[str, "Future[ToolReturned]"]:
        """The id of the approval that the call waits for."""
        known = {each.id for each in self.owner.approvals.list("pending")}
        waiting = self.pool.submit(self.agent.call_tool, "refund", {"amount": amount})
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and not waiting.done():
            for each in self.owner.approvals.list("pending"):
                if each.id not in known:
                    return each.id, waiting
        raise AssertionError(f"nobody is asked: {waiting}")


@contextmanager
def backend(called: list[Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps({"done": len(called)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def shop(home: Path) -> Iterator[Shop]:
    called: list[Any] = []
    with backend(called) as tools:
        (home / "p.yaml").write_text(POLICY)
        listed = [{"name": name, "url": f"{tools}/{name}", "method": "POST"} for name in ("refund", "look")]
        (home / "tools.yaml").write_text(json.dumps({"tools": listed}))
        env = {"LEGATION_POLICY": str(home / "p.yaml"), "LEGATION_TOOLS": str(home / "tools.yaml")}
        with running(home, "up", **env) as server:
            server.line()
            found = server.server_file()
            token = legation(home, "tokens", "new", "claude-1", "--kind", "agent").stdout.strip()
            with (
                Legation.connect(found.url, found.token) as owner,
                Legation.connect(found.url, token) as agent,
            ):
                made = Shop(home, found.url, owner, agent, called)
                yield made
                made.pool.shutdown(cancel_futures=True)


def test_a_call_waits_is_listed_shown_and_approved(shop: Shop) -> None:
    id_, waiting = shop.ask(700)
    (listed,) = json_lines(shop.run("approvals", "--json").stdout)
    assert (listed["id"], listed["tool"], listed["agent_id"], listed["policy_rule"]) == (
        id_,
        "refund",
        "claude-1",
        "shop:refunds",
    )
    shown = shop.run("approvals", "show", id_).stdout
    assert '"amount": 700' in shown
    assert not waiting.done()
    assert shop.called == []
    done = shop.run("approvals", "approve", id_, "--reason", "a good customer")
    assert done.stdout == f"approved {id_} (refund of claude-1)\n"
    returned = waiting.result(LIMIT)
    assert (returned.result, returned.approval_id) == ({"done": 1}, id_)
    again = shop.run("approvals", "deny", id_)
    assert again.returncode == 5
    assert f"cannot deny approval {id_}: it is approved by " in again.stderr
    with pytest.raises(AlreadyAnswered, match="the first answer stands"):
        shop.owner.approvals.approve(id_)

    (trace,) = json_lines(shop.run("trace", "--tool", "refund", "--json").stdout)
    assert (trace["trace_id"], trace["approval_status"]) == (returned.trace_id, "approved")
    assert "executed" in shop.run("trace", "show", returned.trace_id).stdout


def test_a_denial_tells_the_agent_and_nothing_runs(shop: Shop) -> None:
    id_, waiting = shop.ask(9000)
    assert shop.run("approvals", "deny", id_, "--message", "ask for less").returncode == 0
    with pytest.raises(Forbidden, match="ask for less"):
        waiting.result(LIMIT)
    assert shop.called == []
    with pytest.raises(Forbidden):
        shop.agent.approvals.approve(id_)  # an agent answers nothing


def test_other_arguments_identical_calls_and_escalation(shop: Shop) -> None:
    id_, waiting = shop.ask(9000)
    edited = shop.run("approvals", "approve", id_, "--params", '{"amount": 5}')
    assert f"in the place of {id_}" in edited.stdout, edited.stderr
    waiting.result(LIMIT)
    (sent,) = shop.called
    assert "5" in json.dumps(sent)
    assert "9000" not in json.dumps(sent)

    first, one = shop.ask(1)
    _, two = shop.ask(1)
    assert shop.run("approvals", "escalate", first).returncode == 0
    assert len(shop.run("approvals", "approve", first, "--identical").stdout.splitlines()) == 2
    one.result(LIMIT)
    two.result(LIMIT)
    assert len(shop.called) == 3


def test_a_grant_lets_calls_pass_until_it_is_revoked(shop: Shop) -> None:
    given = shop.run(
        "grants", "give", "claude-*", "refund", "--for", "1h", "--reason", "release day", "--json"
    )
    (grant,) = json_lines(given.stdout)
    returned = shop.agent.call_tool("refund", {"amount": 3})
    assert grant["id"] in returned.decided_by
    assert grant["id"] in shop.run("grants").stdout
    assert shop.run("grants", "revoke", grant["id"]).returncode == 0
    assert shop.owner.decide("refund", {"amount": 3}, agent="claude-1").action == "human_approval"
    refused = shop.run("grants", "give", "claude-*", "refund", "--for", "9000h")
    assert refused.returncode == 2
    assert "cannot" in refused.stderr


def test_the_record_is_verified_exported_replayed_and_counted(shop: Shop) -> None:
    for number in range(3):
        shop.agent.call_tool("look", {"n": number})
    verified = shop.run("trace", "verify")
    assert verified.returncode == 0, verified.stdout
    head = verified.stdout.split("head ")[1].strip()
    shop.agent.call_tool("look", {"n": 9})
    assert shop.run("trace", "verify", "--head", head).returncode == 0
    bad = head[:-1] + ("0" if head[-1] != "0" else "1")
    assert shop.run("trace", "verify", "--head", bad).returncode == 1
    assert shop.run("trace", "export", "out.jsonl").returncode == 0
    offline = shop.run("trace", "verify", "out.jsonl", "--head", head)
    assert offline.returncode == 0, offline.stdout + offline.stderr
    text = (shop.home / "out.jsonl").read_bytes()
    (shop.home / "out.jsonl").write_bytes(text.replace(b'"look"', b'"lock"', 1))
    assert shop.run("trace", "verify", "out.jsonl").returncode == 1

    (shop.home / "new.yaml").write_text(POLICY.replace("look, action: allow", "look, action: deny"))
    replayed = shop.run("policy", "replay", "--policy", "new.yaml", "--since", "24h")
    assert "4  allow -> deny" in replayed.stdout, replayed.stderr
    assert "4 of 4 calls would be decided otherwise" in replayed.stdout
    hits = {
        row["policy_rule"]: row["hits"] for row in json_lines(shop.run("policy", "hits", "--json").stdout)
    }
    assert (hits["shop:look"], hits["shop:refunds"]) == (4, 0)


def test_watch_answers_a_call_that_comes_in(shop: Shop) -> None:
    with at_screen(shop.home, None) as screen:
        screen.until("nothing waits for an answer")
        id_, waiting = shop.ask(12)
        screen.asked(id_)
        assert '"amount": 12' in "\n".join(screen.lines)
        screen.type("y")
        assert waiting.result(LIMIT).approval_id == id_
        screen.until("0 pending")
        second, refused = shop.ask(13)
        screen.asked(second)
        shop.owner.approvals.deny(second, message="not now")
        screen.until("nothing to answer here")
        assert "denied by " in "\n".join(screen.lines)
        with pytest.raises(Forbidden, match="not now"):
            refused.result(LIMIT)
        screen.type("q")
        assert screen.end() == 0
