"""Approvals, grants, traces, policy and tools: every operation over a real socket, with both clients."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import asdict, fields
from tests.client.both_clients import TOKEN, Driver, both
from tests.client.canned_door import TOKEN as CANNED_TOKEN
from tests.client.canned_door import CannedServer, canned, entry, view
from tests.client.faulty_server import Asked, answer, html, in_turn, ok, problem, serving

from legation.client import Legation, Timeouts
from legation.client.operations import call_tool
from legation.client.request import TOOL_READ, ApiRequest, ApiResponse, as_linked
from legation.errors import (
    AlreadyAnswered,
    Conflict,
    Forbidden,
    InvalidParams,
    LegationError,
    NotFound,
    RateLimited,
    TimedOut,
    Unavailable,
)
from legation.wire.api.approvals import (
    ApprovalView,
    Approve,
    ChainHead,
    ChainReport,
    ClaimBody,
    Escalation,
    NewGrant,
    Resolution,
    TraceDetail,
)

pytestmark = pytest.mark.heavy  # a server each

NDJSON = "application/x-ndjson"
RETURNED = {
    "result": 1,
    "traceId": "t",
    "trace_id": "t",
    "approval_id": None,
    "policy_rule": "p:r",
    "decided_by": "x",
}
Use = Callable[[Any], Any]


@pytest.fixture
def server() -> Iterator[CannedServer]:
    assert CANNED_TOKEN == TOKEN
    with canned(*(view(f"apr_{number}", group="grp_1") for number in range(5))) as running:
        yield running


@both
def test_approvals_are_listed_page_by_page_along_the_link(driver: Driver, server: CannedServer) -> None:
    server.door.page = 2
    found = driver.items(
        server.url, lambda one: one.approvals.list("pending", tool="B*", agent="claude-1", limit=7)
    )
    assert [each.id for each in found] == [f"apr_{number}" for number in range(5)]
    assert server.door.bodies == [("pending", "B*", "claude-1", 7)] * 3
    page = driver.call(server.url, lambda one: one.approvals.list(after="2").page())
    assert ([each.id for each in page.items], page.next) == (["apr_2", "apr_3"], "4")


@both
def test_an_approval_is_read_and_answered_once(driver: Driver, server: CannedServer) -> None:
    detail = driver.call(server.url, lambda one: one.approvals.get("apr_0"))
    assert (detail.injection_risk, detail.recent_traces[0].trace_id) == (False, "t0")
    assert driver.call(server.url, lambda one: one.approvals.claim("apr_0", lease_seconds=9)).claimed_by
    driver.call(server.url, lambda one: one.approvals.escalate("apr_0", reasoning="odd"))
    done = driver.call(
        server.url, lambda one: one.approvals.approve("apr_0", reasoning="r", message="m", params={"a": 1})
    )
    assert (done.status, done.resolved_by) == ("approved", "user:usr_me")
    denied = driver.call(server.url, lambda one: one.approvals.deny("apr_1", reasoning="r", confidence=0.5))
    assert denied.status == "denied"
    assert server.door.bodies == [
        ClaimBody(lease_seconds=9),
        Escalation(reasoning="odd"),
        Approve(reasoning="r", message="m", params={"a": 1}),
        Resolution(reasoning="r", confidence=0.5),
    ]
    with pytest.raises(AlreadyAnswered):
        driver.call(server.url, lambda one: one.approvals.deny("apr_0"))
    with pytest.raises(NotFound):
        driver.call(server.url, lambda one: one.approvals.approve("apr"))
    with pytest.raises(InvalidParams):
        driver.call(server.url, lambda one: one.approvals.approve(""))


@both
def test_identical_ones_are_answered_together(driver: Driver, server: CannedServer) -> None:
    done = driver.call(server.url, lambda one: one.approvals.answer_group("grp_1", "deny", reasoning="no"))
    assert (len(done.answered), done.refused) == (5, [])
    assert {each.status for each in server.door.approvals.values()} == {"denied"}


@both
def test_changes_are_followed_as_what_they_are(driver: Driver, server: CannedServer) -> None:
    server.propose(view("apr_9"))
    server.resolve("apr_9", "denied", by="user:usr_7")
    first, second = driver.items(server.url, lambda one: one.approvals.follow(), most=2)
    assert (first.seq, first.approval.id, first.approval.status) == (1, "apr_9", "pending")
    assert (second.seq, second.approval.status, second.approval.resolved_by) == (2, "denied", "user:usr_7")
    [again] = driver.items(server.url, lambda one: one.approvals.follow(1), most=1)
    assert again.seq == 2


@both
def test_grants_are_given_read_and_revoked(driver: Driver, server: CannedServer) -> None:
    given = driver.call(
        server.url, lambda one: one.grants.give("claude-*", "B*", "1h", kinds=("execute",), reason="r")
    )
    assert server.door.bodies == [
        NewGrant(agent="claude-*", tools="B*", duration="1h", kinds=["execute"], reason="r")
    ]
    assert driver.call(server.url, lambda one: one.grants.get(given.id)) == given
    assert driver.items(server.url, lambda one: one.grants.list()) == [given]
    assert driver.call(server.url, lambda one: one.grants.revoke(given.id)) is None
    with pytest.raises(NotFound):
        driver.call(server.url, lambda one: one.grants.revoke(given.id))


@both
def test_traces_are_listed_read_and_verified(driver: Driver, server: CannedServer) -> None:
    server.door.traces = [TraceDetail(**asdict(entry(f"t{n}")), steps=[], result=None) for n in range(3)]
    head = ChainHead(server="s", seq=3, hash="h")
    server.door.chains = [ChainReport(server="s", steps=3, contents=1, purged=0, head=head, problems=[])]
    server.door.page = 2
    found = driver.items(
        server.url, lambda one: one.traces.list(agent="a", tool="t", session="s", since="1h")
    )
    assert [each.trace_id for each in found] == ["t0", "t1", "t2"]
    assert server.door.bodies[0] == ("a", "t", "s", "1h", 100)
    assert driver.call(server.url, lambda one: one.traces.get("t1")).trace_id == "t1"
    assert driver.call(server.url, lambda one: one.traces.verify([head])) == server.door.chains
    assert server.door.bodies[-1] == ["s:3:h"]


@both
def test_an_export_comes_line_by_line(driver: Driver, server: CannedServer) -> None:
    lines = [b'{"n":%d,"pad":"%b"}\n' % (number, b"x" * number * 50) for number in range(60)]
    server.door.export = b"".join(lines)
    assert driver.items(server.url, lambda one: one.traces.export("srv", after=3)) == lines[3:]
    assert server.door.bodies == [("srv", 3)]


@both
@pytest.mark.parametrize(
    ("reply", "words", "tries"),
    [
        (answer(200, b'{"a":1}\n{"b"', NDJSON), "broke off in a line", 1),
        (answer(200, b'{"a":1}\n{"b":2}\n', NDJSON)[:-3], "cannot GET", 1),
        (html(200), "what answered is not Legation", 1),
        (problem(403, "legation/forbidden", "cannot export: needs scope read"), "needs scope", 1),
        (html(503), "HTTP 503", 2),
    ],
)
def test_an_export_that_breaks_off_is_an_error_and_no_end(
    driver: Driver, reply: bytes, words: str, tries: int
) -> None:
    with serving(in_turn(reply)) as faulty, pytest.raises(LegationError, match=words):
        driver.items(faulty.url, lambda one: one.traces.export(), repeats=1)
    assert len(faulty.asked) == tries


@both
def test_the_policy_in_force_is_read_explained_replayed_and_counted(
    driver: Driver, server: CannedServer
) -> None:
    assert driver.call(server.url, lambda one: one.policy.info()).source == "policy.yaml"
    how = {"agent": "a", "session_id": "s", "kind": "edit", "cwd": "/w"}
    explained = driver.call(server.url, lambda one: one.policy.explain("Edit", {"path": "x"}, **how))
    decided = driver.call(server.url, lambda one: one.decide("Edit", {"path": "x"}, **how))
    assert (explained.action, decided.action) == ("deny", "deny")
    assert driver.call(server.url, lambda one: one.policy.replay("name: p", since="24h")).calls == 3
    assert driver.call(server.url, lambda one: one.policy.hits(since="7d"))[0].hits == 7
    asked, dry, replayed, since = server.door.bodies
    assert asked == dry
    assert (asked.tool, asked.params, asked.agent, asked.kind, asked.cwd) == (
        "Edit",
        {"path": "x"},
        "a",
        "edit",
        "/w",
    )
    assert (replayed.policy, replayed.since, since) == ("name: p", "24h", "7d")


@both
def test_d19_the_arguments_of_a_tool_are_always_sent_as_params(driver: Driver, server: CannedServer) -> None:
    returned = driver.call(
        server.url,
        lambda one: one.call_tool("srv.tool/x", {"params": 1, "amount": 5}, agent="a", session_id="s"),
    )
    assert returned.result == {"params": 1, "amount": 5}
    [(name, body)] = server.door.bodies
    assert (name, body.params, body.agent, body.session_id) == (
        "srv.tool/x",
        {"params": 1, "amount": 5},
        "a",
        "s",
    )
    driver.call(server.url, lambda one: one.call_tool("t", {}))
    assert server.door.bodies[-1][1].params == {}


@both
@pytest.mark.parametrize("params", [{"a": float("nan")}, {"a": object()}, {"a": "\ud800"}, [1], None])
def test_arguments_that_json_cannot_hold_as_they_are_are_refused_before_anything_is_sent(
    driver: Driver, params: Any
) -> None:
    with serving(in_turn(ok(RETURNED))) as faulty, pytest.raises(InvalidParams, match="cannot send"):
        driver.call(faulty.url, lambda one: one.call_tool("t", params))
    assert faulty.asked == []


EVERYTHING: list[Use] = [
    lambda one: one.call_tool("t", {}),
    lambda one: one.decide("t", {}),
    lambda one: one.approvals.list().page(),
    lambda one: one.approvals.get("a"),
    lambda one: one.approvals.approve("a"),
    lambda one: one.approvals.deny("a"),
    lambda one: one.approvals.escalate("a"),
    lambda one: one.approvals.claim("a"),
    lambda one: one.approvals.answer_group("g", "approve"),
    lambda one: one.grants.list().page(),
    lambda one: one.grants.give("a", "t", 60),
    lambda one: one.grants.get("g"),
    lambda one: one.grants.revoke("g"),
    lambda one: one.traces.list().page(),
    lambda one: one.traces.get("t"),
    lambda one: one.traces.verify(),
    lambda one: one.policy.info(),
    lambda one: one.policy.explain("t", {}),
    lambda one: one.policy.replay("p"),
    lambda one: one.policy.hits(),
]


@both
def test_d25_every_call_sends_the_token(driver: Driver) -> None:
    with serving(in_turn(problem(404, "legation/not-found", "cannot find it"))) as faulty:
        for use in EVERYTHING:
            with pytest.raises(NotFound):
                driver.call(faulty.url, use)
        with pytest.raises(NotFound):
            driver.items(faulty.url, lambda one: one.traces.export())
        with pytest.raises(NotFound):
            driver.items(faulty.url, lambda one: one.approvals.follow())
    assert len(faulty.asked) == len(EVERYTHING) + 2
    assert {asked.headers.get("authorization") for asked in faulty.asked} == {f"Bearer {TOKEN}"}


@both
@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (problem(403, "legation/forbidden", "cannot run it: ask Ann first"), Forbidden, "ask Ann first"),
        (problem(408, "legation/timeout", "cannot run it: nobody answered"), TimedOut, "nobody answered"),
        (problem(408, "legation/forbidden", "cannot run it: nobody answered"), TimedOut, "nobody answered"),
        (problem(408, "legation/newer", "cannot run it: nobody answered"), TimedOut, "nobody answered"),
        (problem(504, "legation/timeout", "cannot run it: too slow"), TimedOut, "too slow"),
        (html(408), TimedOut, "HTTP 408"),
        (problem(409, "legation/conflict", "cannot run it: superseded"), Conflict, "superseded"),
        (
            problem(429, "legation/rate-limited", "cannot run it", {"retryAfter": 3}),
            RateLimited,
            "cannot run it",
        ),
        (html(502), Unavailable, "HTTP 502"),
    ],
)
def test_a_refused_tool_is_the_right_error_and_is_never_tried_again(
    driver: Driver, reply: bytes, kind: type[LegationError], words: str
) -> None:
    with serving(in_turn(reply)) as faulty, pytest.raises(LegationError, match=words) as caught:
        driver.call(faulty.url, lambda one: one.call_tool("t", {}))
    assert type(caught.value) is kind
    assert len(faulty.asked) == 1


@both
def test_a_call_with_a_key_is_sent_again_under_it(driver: Driver) -> None:
    away = problem(503, "legation/unavailable", "cannot wait any longer: the server stops")
    with serving(in_turn(away, ok(RETURNED))) as faulty:
        assert driver.call(faulty.url, lambda one: one.call_tool("t", {}, key="k1")).result == 1
    assert [asked.headers["idempotency-key"] for asked in faulty.asked] == ["k1", "k1"]


@both
def test_a_tool_may_take_longer_than_any_other_answer(driver: Driver) -> None:
    def slow(asked: Asked) -> Iterator[bytes]:
        faulty.over.wait(0.6)  # longer than `read` allows
        yield ok(RETURNED)

    with serving(slow) as faulty:
        short = Timeouts(read=0.2)
        assert driver.call(faulty.url, lambda one: one.call_tool("t", {}), timeouts=short).result == 1
        with pytest.raises(TimedOut, match="in time"):
            driver.call(faulty.url, lambda one: one.call_tool("t", {}, timeout=0.1))
        with pytest.raises(TimedOut):
            driver.call(faulty.url, lambda one: one.decide("t", {}), timeouts=short)


def test_a_tool_has_more_than_an_hour() -> None:
    assert call_tool("t", {}).wait == TOOL_READ > 3600
    assert call_tool("t", {}, timeout=5).wait == 5
    with pytest.raises(InvalidParams, match="timeout"):
        call_tool("t", {}, timeout=0)
    assert {each.name for each in fields(ApiRequest)} >= {"wait"}


@pytest.mark.parametrize(
    ("link", "after"),
    [
        ("", None),
        ('</approvals?after=x%2F1&limit=2>; rel="next"', "x/1"),
        ("<https://elsewhere.example/approvals?after=7>; rel=next", "7"),
        ('</a?after=1>; rel="prev", </a?after=2>; title="a"; rel="next"', "2"),
        ('</a?after=1>; rel="prev"', None),
        ('</a?after=1>; rel="nextish"', None),
    ],
)
def test_only_the_place_is_taken_from_a_link(link: str, after: str | None) -> None:
    page = as_linked(ApprovalView)(ApiResponse({"link": link} if link else {}, b"[]"))
    assert page.next == after


@both
def test_a_link_that_leads_nowhere_is_an_error_and_no_end(driver: Driver) -> None:
    with (
        serving(in_turn(answer(200, b"[]", link='</approvals>; rel="next"'))) as faulty,
        pytest.raises(LegationError, match="without `after`"),
    ):
        driver.items(faulty.url, lambda one: one.approvals.list())


def test_closing_the_client_ends_an_export_that_hangs() -> None:
    import threading

    def hang(asked: Asked) -> Iterator[bytes]:
        yield (b'HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n{"a":1}\n')
        faulty.over.wait(20)

    with serving(hang) as faulty:
        client = Legation.connect(faulty.url, TOKEN)
        lines = client.traces.export()
        assert json.loads(next(lines)) == {"a": 1}
        closer = threading.Timer(0.1, client.close)
        closer.start()
        with pytest.raises(Conflict, match="closed"):
            next(lines)
        closer.join()
