"""Whoever is revoked takes the waiting calls along: over HTTP, on both databases, with a real backend that must hear
nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.gateway.backend import Backend
from tests.gateway.backend import backend as open_backend
from tests.server.rig import BOTH, bearer
from tests.server.tools.tool_calls import POLICY, Calls, open_calls

from legation.approvals.upkeep import REVOKED_EVERY

pytestmark = pytest.mark.heavy

DAY = 86_400.0
LONG = POLICY.replace("timeout: 10m", "timeout: 72h")
Way = Callable[[Calls, str], Awaitable[httpx2.Response]]


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made


@pytest.fixture(params=BOTH)
async def calls(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls(request.param, tmp_path, request, backend, monkeypatch, LONG) as made:
        yield made


async def _revoked(calls: Calls, token: str) -> httpx2.Response:
    return await calls.rig.client.delete(f"/v1/tokens/{token}", headers=await _admin(calls))


async def _disabled(calls: Calls, _token: str) -> httpx2.Response:
    user = calls.rig.people["operator"]
    return await calls.rig.client.patch(
        f"/v1/users/{user}", json={"disabled": True}, headers=await _admin(calls)
    )


async def _removed(calls: Calls, _token: str) -> httpx2.Response:
    user = calls.rig.people["operator"]
    return await calls.rig.client.delete(f"/v1/workspaces/local/members/{user}", headers=await _admin(calls))


async def _demoted(calls: Calls, _token: str) -> httpx2.Response:
    user = calls.rig.people["operator"]
    return await calls.rig.client.put(
        f"/v1/workspaces/local/members/{user}", json={"role": "viewer"}, headers=await _admin(calls)
    )


async def _admin(calls: Calls) -> dict[str, str]:
    return bearer(calls.rig.services.own_token.reveal())


async def must_be_over(calls: Calls, response: httpx2.Response, approval: str, why: str = "revoked") -> None:
    """For whoever waited, for whoever would answer, in the trace, and for the tool."""
    assert response.status_code == 409
    problem = response.json()["data"]
    assert problem["outcome"] == "superseded", problem
    answer = await calls.answer(approval)
    assert answer.status_code == 409
    assert "superseded" in answer.json()["detail"]
    steps = await calls.steps(problem["trace_id"])
    assert steps[-1] == ("superseded", why)
    assert calls.backend.seen == []
    await calls.must_verify()


@pytest.mark.parametrize("way", [_revoked, _disabled, _removed, _demoted])
async def test_a_revoked_token_takes_its_waiting_call_along(calls: Calls, way: Way) -> None:
    token, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent")
    running = calls.start("db.write", {"params": {}}, authorization=f"Bearer {secret}")
    approval = await calls.waiting()
    assert (await way(calls, token)).is_success
    # Nobody can answer it from this moment on: it is not the waiter that notices.
    listed = await calls.rig.client.get(f"/approvals/{approval.id}", headers=calls.person)
    assert listed.json()["status"] == "superseded"
    response = await running
    assert "revoked" in response.json()["detail"]
    await must_be_over(calls, response, approval.id)


async def test_what_another_asked_for_waits_on(calls: Calls) -> None:
    token, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent")
    gone = calls.start("db.write", {"params": {"n": 1}}, authorization=f"Bearer {secret}")
    await calls.waiting()
    stays = calls.start("db.write", {"params": {"n": 2}})
    approval = await calls.waiting()
    await _revoked(calls, token)
    assert (await gone).status_code == 409
    assert (await calls.answer(approval.id)).status_code == 200
    assert (await stays).status_code == 200
    assert len(calls.backend.seen) == 1


async def test_a_user_who_is_signed_out_everywhere_takes_the_calls_of_the_browser_along(calls: Calls) -> None:
    operator = calls.rig.people["operator"]
    browser, own = await calls.rig.cookie(operator), await calls.rig.bearer(operator, "call", "operate")
    body = {"params": {}, "agent": "claude"}
    asking = calls.start_as(own, "db.write", body)
    by_token = await calls.waiting()
    waiting = calls.start_as(browser, "db.write", body)
    by_browser = await calls.waiting()
    answer = await calls.rig.client.post("/v1/sign-out?everywhere=true", headers=browser)
    assert answer.is_success
    await must_be_over(calls, await waiting, by_browser.id)
    assert (await calls.answer(by_token.id)).status_code == 200  # a token is no browser
    assert (await asking).status_code == 200


async def test_a_token_whose_time_is_over_takes_its_waiting_call_along(calls: Calls) -> None:
    _, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent", days=1)
    running = calls.start("db.write", {"params": {}}, authorization=f"Bearer {secret}")
    approval = await calls.waiting()
    calls.rig.clock.advance(DAY + REVOKED_EVERY)
    await must_be_over(calls, await running, approval.id)


async def test_a_revocation_that_nobody_told_the_door_of_counts_when_the_answer_is_used(calls: Calls) -> None:
    """As one at another server, half a second before its news is read."""
    token, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent")
    running = calls.start("db.write", {"params": {}}, authorization=f"Bearer {secret}")
    approval = await calls.waiting()
    await calls.rig.rows(f"update api_token set revoked_at = 1 where id = '{token}'")
    assert (await calls.answer(approval.id)).status_code == 200
    await must_be_over(calls, await running, approval.id)


async def test_a_rule_that_allows_it_meanwhile_does_not_help_who_is_revoked(
    calls: Calls, tmp_path: Path
) -> None:
    token, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent")
    running = calls.start("db.write", {"params": {}}, authorization=f"Bearer {secret}")
    approval = await calls.waiting()
    await calls.rig.rows(f"update api_token set revoked_at = 1 where id = '{token}'")
    (tmp_path / "policy.yaml").write_text(
        LONG.replace("action: human_approval, timeout: 72h", "action: allow")
    )
    calls.rig.services.policies.poll()
    assert calls.rig.services.policies.poll()
    await must_be_over(calls, await running, approval.id)


async def test_a_grant_that_covers_it_meanwhile_does_not_help_who_is_revoked(calls: Calls) -> None:
    token, secret = await calls.rig.token(calls.rig.people["operator"], "call", kind="agent")
    running = calls.start("db.write", {"params": {}}, authorization=f"Bearer {secret}")
    approval = await calls.waiting()
    await calls.rig.rows(f"update api_token set revoked_at = 1 where id = '{token}'")
    grant = {"agent": "*", "tools": "db.*", "duration": 60}
    given = await calls.rig.client.post("/grants", json=grant, headers=calls.person)
    assert given.is_success
    await must_be_over(calls, await running, approval.id)


async def test_a_session_that_ends_takes_the_calls_in_its_name_along(calls: Calls, tmp_path: Path) -> None:
    admin, work = await _admin(calls), tmp_path / "data" / "work"
    work.mkdir(exist_ok=True)
    client = calls.rig.client
    made = await client.post("/v1/sessions/mine", json={"agent": "rehearsal"}, headers=admin, timeout=60)
    assert made.is_success, made.text
    running = calls.start("db.write", {"params": {}}, x_session_id="mine")
    approval = await calls.waiting()
    assert (await client.post("/v1/sessions/mine/terminate", headers=admin, timeout=60)).is_success
    response = await running
    assert "session" in response.json()["detail"]
    await must_be_over(calls, response, approval.id, "session-closed")


@pytest.mark.parametrize("change", [{"disabled": True}, {"role": "viewer"}])
async def test_a_grant_of_somebody_who_may_approve_no_more_lifts_nothing(
    calls: Calls, change: dict[str, object]
) -> None:
    client, admin, giver = calls.rig.client, await _admin(calls), calls.rig.people["approver"]
    grant = {"agent": "*", "tools": "db.*", "duration": 600}
    assert (await client.post("/grants", json=grant, headers=calls.person)).is_success
    assert (await calls.call("db.write", {"params": {"n": 1}})).status_code == 200
    if "role" in change:
        done = await client.put(f"/v1/workspaces/local/members/{giver}", json=change, headers=admin)
    else:
        done = await client.patch(f"/v1/users/{giver}", json=change, headers=admin)
    assert done.is_success
    running = calls.start("db.write", {"params": {"n": 2}})
    approval = await calls.waiting()  # somebody is asked again
    owner = await calls.rig.cookie(calls.rig.people["owner"])
    assert (await client.post(f"/approvals/{approval.id}/deny", headers=owner)).is_success
    assert (await running).status_code == 403
    assert len(calls.backend.seen) == 1
