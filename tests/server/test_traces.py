"""Traces over HTTP: lists and pages, one trace, verify, export, and who sees contents."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.test_trace import check_the_jq_lines
from tests.server import rig as rigs
from tests.server.rig import BOTH, Rig, open_rig

from legation.approvals.approval import ApprovalAnswer, Proposal, Waiter, new_approval_id
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.export import verify_export
from legation.approvals.trace.step import StepDraft, StepKind, TracedCall, decided, new_trace_id, proposed
from legation.approvals.transitions import Transitions
from legation.errors import InvalidParams
from legation.server.routes import ROUTES, policy, traces
from legation.server.routes.traces import moment
from legation.wire.action import Action
from legation.wire.principal import Principal

pytestmark = pytest.mark.heavy

NOW = 1_700_000_000_000
SUPERVISOR = Principal(
    kind="agent", id="supervisor", workspace="local", scopes=frozenset({"read", "approve"}), level=1
)
SECRET = "canary in the file"
LONG = "the tool said " + "x" * 300


@pytest.fixture
def surfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = (traces.routes, policy.routes)
    monkeypatch.setattr(rigs, "ROUTES", (*ROUTES, *(each for each in mine if each not in ROUTES)))


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path, surfaces: None) -> AsyncIterator[Rig]:
    async with open_rig(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
async def closed(request: pytest.FixtureRequest, tmp_path: Path, surfaces: None) -> AsyncIterator[Rig]:
    """A server that exposes no contents."""
    async with open_rig("sqlite", tmp_path, request, expose_content="false") as made:
        yield made


async def record(
    rig: Rig, agent: str = "claude", tool: str = "fs.write", session: str = "ses_1", workspace: str = "local"
) -> str:
    """A call that passed, and failed in the tool."""
    action = Action(agent=agent, tool=tool, kind="edit", params={"path": "/p/a", "content": SECRET})
    call = TracedCall(trace_id=new_trace_id(), agent=agent, tool=tool, session_id=session)
    said = {"result": [SECRET], "error": LONG}
    drafts = [
        proposed(call, action, action.digest("v1"), context={"cwd": "/p"}),
        decided(call, "allow", "p:rule", "v1"),
        StepDraft(step=StepKind.RETURNED, call=call, status_code=502, latency_ms=3, contents=said),  # type: ignore[arg-type]
    ]
    await rig.services.ledger.append(workspace, drafts, rig.clock.now_ms())
    return call.trace_id


async def supervised(rig: Rig, confidence: float) -> None:
    services, now = rig.services, rig.clock.now_ms()
    proposal = Proposal(
        id=new_approval_id(now),
        trace_id=new_trace_id(),
        workspace="local",
        waiter=Waiter("session:ses_1", services.inbox.holder),
        requester_kind="token",
        requester="tok_1",
        action=Action(agent="claude", tool="fs.write", params={"n": confidence}),
        verdict="supervisor",
        policy_version="v1",
        policy_rule="claude:rule-2",
        expires_at=now + 300_000,
    )
    await services.ledger.transact("local", services.inbox.life.propose, proposal, now)
    said = ApprovalAnswer(approve=True, reasoning="in the project", confidence=confidence)
    await services.inbox.resolve(SUPERVISOR, proposal.id, said)


async def get(rig: Rig, path: str, headers: dict[str, str] | None = None) -> httpx2.Response:
    viewer = rig.people["viewer"]
    return await rig.client.get(path, headers=headers or await rig.bearer(viewer, "read"))


async def test_the_three_jq_lines_are_right_on_the_servers_own_answer(rig: Rig) -> None:
    for confidence in (0.95, 0.8, 0.6):
        await supervised(rig, confidence)
    await record(rig)
    answer = await get(rig, "/traces")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    check_the_jq_lines(answer.content, [0.95, 0.8, 0.6])


async def test_pages_follow_the_link_and_keep_the_question(rig: Rig) -> None:
    made = []
    for _ in range(5):
        made.append(await record(rig, "an agent/&?", "fs.*"))
        rig.clock.advance(1)
    await record(rig, "codex")
    path: str | None = "/traces?agent=an%20agent%2F%26%3F&tool=fs.*&limit=2&since=1h"
    seen, pages = [], 0
    while path is not None:
        answer = await get(rig, path)
        assert answer.status_code == 200, answer.text
        seen += [entry["trace_id"] for entry in answer.json()]
        pages += 1
        link = answer.links.get("next")
        path = None if link is None else link["url"]
        if path:
            assert path.startswith("/traces?agent=an+agent%2F%26%3F&tool=fs.%2A&limit=2&since=1h&after=")
    assert (pages, seen) == (3, made[::-1])


async def test_traces_are_chosen_by_session_and_time(rig: Rig) -> None:
    old = await record(rig, session="ses_old")
    rig.clock.advance(7200)
    new = await record(rig, session="ses_new")

    async def listed(query: str) -> list[str]:
        return [entry["trace_id"] for entry in (await get(rig, f"/traces{query}")).json()]

    assert await listed("") == [new, old]
    assert await listed("?session=ses_old") == [old]
    assert await listed("?since=1h") == [new]
    assert await listed("?since=2h0m0.5s") == [new, old]
    assert await listed("?session=ses_old&since=1h") == []


@pytest.mark.parametrize(
    "query",
    [
        "since=yesterday",
        "since=",
        "since=-1h",
        "limit=0",
        "limit=501",
        "after=x",
        "status=1",
        "agent=a&agent=b",
    ],
)
async def test_a_malformed_question_is_refused(closed: Rig, query: str) -> None:
    answer = await get(closed, f"/traces?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "legation/invalid-params")
    assert "regex" not in answer.json()["detail"] or query == "after=x"


async def test_one_trace_has_its_steps_and_its_result(rig: Rig) -> None:
    trace = await record(rig)
    found = (await get(rig, f"/traces/{trace}")).json()
    (listed,) = (await get(rig, "/traces")).json()
    assert {name: found[name] for name in listed} == listed
    assert [step["step"] for step in found["steps"]] == ["proposed", "decided", "returned"]
    assert (found["result"], found["error"], found["params"]["content"]) == ([SECRET], LONG, SECRET)


async def test_an_agents_lone_surrogate_makes_no_list_unreadable(rig: Rig) -> None:
    """Or one call of a hostile agent would blind everybody who looks."""
    action = Action(agent="a", tool="t", params={"lone": "a\ud800", "big": 2**70})
    call = TracedCall(trace_id=new_trace_id(), agent="a", tool="t")
    await rig.services.ledger.append("local", [proposed(call, action, "d")], rig.clock.now_ms())
    for path in ("/traces", f"/traces/{call.trace_id}"):
        answer = await get(rig, path)
        assert answer.status_code == 200
        assert '{"lone":"a\\ud800","big":1180591620717411303424}' in answer.text.replace(", ", ",")


async def test_another_workspaces_traces_are_nowhere(rig: Rig) -> None:
    trace = await record(rig, workspace=rig.other)
    stranger = await rig.bearer(rig.people["stranger"], "read", workspace=rig.other)
    assert (await get(rig, f"/traces/{trace}")).status_code == 404
    assert (await get(rig, "/traces")).json() == []
    assert (await get(rig, "/v1/trace/export")).content == b""
    assert (await get(rig, "/v1/trace/verify")).json() == []
    assert len((await get(rig, "/traces", stranger)).json()) == 1
    assert len((await get(rig, "/v1/trace/verify", stranger)).json()) == 1


@pytest.mark.parametrize("trace", ["0" * 32, "x", "%00", "a%2Fb"])
async def test_a_trace_that_is_not_there_is_not_found(closed: Rig, trace: str) -> None:
    expected = 400 if trace == "%00" else 404
    assert (await get(closed, f"/traces/{trace}")).status_code == expected


async def test_verify_tells_of_every_chain_and_finds_what_was_changed(rig: Rig) -> None:
    await record(rig)
    second = Ledger(rig.services.database, Chain("srv:2", rig.services.sealer))
    action = Action(agent="a", tool="t", params={"x": 1})
    call = TracedCall(trace_id=new_trace_id(), agent="a", tool="t")
    await second.append("local", [proposed(call, action, "d")], NOW)
    other, first = sorted((await get(rig, "/v1/trace/verify")).json(), key=lambda report: report["steps"])
    assert (first["steps"], first["contents"], first["purged"], first["problems"]) == (3, 4, 0, [])
    assert (other["server"], other["steps"], other["head"]["seq"]) == ("srv:2", 1, 1)

    await rig.rows("update trace_step set status_code = 200 where status_code = 502")
    problems = [report["problems"] for report in (await get(rig, "/v1/trace/verify")).json()]
    assert sorted(problems) == [[], ["step 3: it was changed"]]


async def test_verify_tells_of_approvals_that_are_not_as_the_trace_tells(rig: Rig) -> None:
    await record(rig)
    trace, approval = new_trace_id(), new_approval_id(NOW)
    asked = Proposal(
        id=approval,
        trace_id=trace,
        workspace="local",
        waiter=Waiter("session:ses_1", rig.services.inbox.holder),
        requester_kind="token",
        requester="tok_agent",
        action=Action(agent="a", tool="t", params={}),
        verdict="supervisor",
        policy_version="v1",
        policy_rule="a:1",
        expires_at=NOW + 60_000,
    )
    life = Transitions(rig.services.ledger.chain)
    await rig.services.ledger.transact("local", life.propose, asked, NOW)
    await rig.services.ledger.transact(
        "local", life.resolve, SUPERVISOR, approval, ApprovalAnswer(approve=False, confidence=1), NOW + 1
    )
    (good,) = (await get(rig, "/v1/trace/verify")).json()
    assert good["problems"] == []
    await rig.rows("update approval set status = 'approved'")
    (report,) = (await get(rig, "/v1/trace/verify")).json()
    (problem,) = report["problems"]
    assert problem.endswith(f"its approval {approval} has another outcome than the trace tells")
    for table in ("trace_content", "trace_step", "trace_head"):
        await rig.rows(f"delete from {table}")
    (report,) = (await get(rig, "/v1/trace/verify")).json()
    assert report["problems"] == [f"no step tells of approval {approval}: it was put in"]


async def test_a_known_head_shows_that_an_end_or_a_whole_chain_was_cut_off(rig: Rig) -> None:
    await record(rig)
    (report,) = (await get(rig, "/v1/trace/verify")).json()
    head = "{server}:{seq}:{hash}".format(**report["head"])
    (same,) = (await get(rig, f"/v1/trace/verify?head={head}&head=srv_gone:2:{'0' * 64}")).json()[:1]
    assert same["problems"] == []
    gone = (await get(rig, f"/v1/trace/verify?head=srv_gone:2:{'0' * 64}")).json()[1]
    assert (gone["server"], gone["problems"]) == (
        "srv_gone", ["step 2: the chain was longer before: its end was cut off"]
    )  # fmt: skip
    for table in ("trace_content", "trace_step", "trace_head"):
        await rig.rows(f"delete from {table}")
    (cut,) = (await get(rig, f"/v1/trace/verify?head={head}")).json()
    assert cut["problems"] == ["step 3: the chain was longer before: its end was cut off"]


@pytest.mark.parametrize("heads", ["x", "srv:1", f"srv:-1:{'0' * 64}", "s:1:zz"])
async def test_a_head_that_no_verify_named_is_refused(closed: Rig, heads: str) -> None:
    assert (await get(closed, f"/v1/trace/verify?head={heads}")).status_code == 400


async def test_the_export_verifies_and_goes_on_from_a_number(rig: Rig) -> None:
    await record(rig)
    await record(rig)
    answer = await get(rig, "/v1/trace/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = answer.content.splitlines(keepends=True)
    (report,) = verify_export(lines)
    (served,) = (await get(rig, "/v1/trace/verify")).json()
    assert (report.ok, report.steps, report.checked) == (True, 6, 8)
    assert (report.server, report.head.hash) == (served["server"], served["head"]["hash"])
    rest = await get(rig, f"/v1/trace/export?server={report.server}&after=4")
    assert rest.content.splitlines(keepends=True) == lines[4:]
    assert (await get(rig, f"/v1/trace/export?server={report.server}")).content == answer.content
    assert (await get(rig, "/v1/trace/export?server=srv_none")).status_code == 404
    assert (await get(rig, "/v1/trace/export?after=4")).content == rest.content
    assert (await get(rig, "/v1/trace/export?server=x&after=-1")).status_code == 400


async def test_d8_who_may_not_see_contents_sees_their_structure_everywhere(closed: Rig) -> None:
    trace = await record(closed)
    owner = closed.people["owner"]
    paths = ["/traces", f"/traces/{trace}", "/v1/trace/export"]
    for credential in (
        await closed.bearer(owner, "read", "approve", kind="supervisor"),
        await closed.bearer(owner, "read", kind="agent"),
    ):
        for path in paths:
            answer = await closed.client.get(path, headers=credential)
            assert answer.status_code == 200
            assert SECRET not in answer.text
            assert LONG not in answer.text
        found = (await closed.client.get(paths[1], headers=credential)).json()
        assert found["params"]["path"] == "/p/a"
        assert found["params"]["content"]["content_length"] == len(SECRET)
        assert found["result"]["content_type_detected"] == "application/json"
        assert json.loads(found["error"])["content_length"] == len(LONG)
        exported = (await closed.client.get(paths[2], headers=credential)).content.splitlines()
        (report,) = verify_export(exported)
        assert (report.ok, report.steps, report.checked, report.purged) == (True, 3, 0, 4)
    person = await closed.cookie(owner)
    for path in paths:
        assert SECRET in (await closed.client.get(path, headers=person)).text


async def test_contents_are_exposed_unless_the_owner_says_otherwise(rig: Rig) -> None:
    trace = await record(rig)
    supervisor = await rig.bearer(rig.people["owner"], "read", "approve", kind="supervisor")
    for path in ("/traces", f"/traces/{trace}", "/v1/trace/export"):
        assert SECRET in (await rig.client.get(path, headers=supervisor)).text


def test_a_moment_is_a_time_or_how_long_ago() -> None:
    now = NOW
    assert moment(None, now) == 0
    assert moment("24h", now) == now - 86_400_000
    assert moment("1h30m", now) == now - 5_400_000
    assert moment("1.5s", now) == now - 1500
    assert moment("7d", now) == now - 7 * 86_400_000
    assert moment("999999w", now) == 0
    assert moment("2023-11-14T22:13:20Z", now) == now
    assert moment("2023-11-14T23:13:20.25+01:00", now) == now + 250
    assert moment("2023-11-14T23:13:20 01:00", now) == now  # an unescaped + in a query
    assert moment("2023-11-14T19:13:20-03:00", now) == now
    assert moment("2023-02-30T00:00:00Z", now) == moment("2023-03-02T00:00:00Z", now)
    assert moment("9999-12-31T23:59:60.999999999-23:59", now) > now
    assert moment("1000-01-01T00:00:00+14:00", now) == 0


OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(1970, 1, 3), datetime(9998, 1, 1), timezones=OFFSETS))
def test_a_moment_is_read_as_python_reads_it(time: datetime) -> None:
    whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
    assert moment(whole.isoformat(), 0) == round(whole.timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "1",
        "1x",
        "-1h",
        "1h ",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-13-14T22:13:20Z",
        "24h\n",
        "\u0661h",
        "1.2.3s",
    ],
)
def test_what_is_no_moment_is_refused(text: Any) -> None:
    with pytest.raises(InvalidParams):
        moment(text, NOW)
