"""Runs over HTTP on both databases: submission, secrets, keys, rates, batches, templates, lists, cancel and resume."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.server.rig import BOTH, Rig, open_rig

from legation.runs.run import SUBMISSION, find_run
from legation.runs.submit import _Ready
from legation.wire.api.runs import RunSpec, RunSubmission

pytestmark = pytest.mark.heavy

INLINE = {"agent": "rehearsal", "prompt": "say hello"}
JSON = {"content-type": "application/json"}
KEY = "sk-ant-canary-0123456789-key"
CLAUDE = {"agent": "claude", "prompt": "fix it", "secrets": {"anthropic": {"apiKey": KEY}}}


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with asyncio.timeout(110), open_rig(request.param, tmp_path, request) as made:
        yield made


async def credentials(rig: Rig, who: str = "operator") -> dict[str, str]:
    return await rig.bearer(rig.people[who])


async def submit(rig: Rig, headers: dict[str, str], body: object = INLINE, **more: str) -> httpx2.Response:
    return await rig.client.post("/v1/runs", json=body, headers={**headers, **more})


async def count(rig: Rig, table: str) -> int:
    (row,) = await rig.rows(f"select count(*) as many from {table}")
    return int(row["many"])


async def audited(rig: Rig) -> list[str]:
    return [action for action in await rig.actions() if action.startswith(("run.", "template."))]


async def spec_of(rig: Rig, run: str) -> RunSpec:
    (page,) = await rig.services.content.read("local", run, SUBMISSION)
    return msgspec.json.decode(page.plain, type=RunSpec)


async def test_a_run_is_kept_with_its_secrets_sealed_and_no_worker_is_said(rig: Rig) -> None:
    headers = await credentials(rig)
    body = {
        **CLAUDE,
        "mcpServers": {"files": {"type": "remote", "url": "https://mcp.example/v1"}},
        "environment": {"envVars": {"CI": "1"}},
        "timeouts": {"run": 60},
    }
    body["secrets"] = {
        "anthropic": {"apiKey": KEY},
        "mcpServers": [{"name": "files", "headers": {"Authorization": "Bearer canary-mcp-header"}}],
    }
    answer = await submit(rig, headers, body)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["state"], told["status"], told["agent"]) == ("queued", "queued", "claude")
    assert "no worker" in told["notice"]
    assert told["liveness"] == "idle"
    run = await rig.services.database.read(find_run, "local", told["id"])
    assert run is not None
    assert run.secret_id is not None
    opened = await rig.services.vault.open("local", run.id, run.secret_id)
    assert {name: secret.reveal() for name, secret in opened.items()} == {
        "ANTHROPIC_API_KEY": KEY,
        "mcp:files:Authorization": "Bearer canary-mcp-header",
    }
    spec = await spec_of(rig, run.id)
    assert spec.prompts == ["fix it"]
    assert spec.environment.env_vars == {"CI": "1"}
    assert list(spec.mcp_servers) == ["files"]
    assert run.caps.concurrency == rig.services.settings.run_concurrency
    assert await audited(rig) == ["run.submitted"]


async def test_limits_that_change_later_are_those_of_later_runs(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    caps = []
    for number, concurrency in enumerate(("3", "9")):
        async with (
            asyncio.timeout(110),
            open_rig("sqlite", tmp_path, request, run_concurrency=concurrency) as rig,
        ):
            headers = await credentials(rig)
            if number == 0:
                await submit(rig, headers)
            await submit(rig, headers)
            rows = await rig.rows("select caps from run order by id")
            caps = [json.loads(row["caps"])["concurrency"] for row in rows]
    assert sorted(caps) == [3, 3, 9]  # the clock stands still, and ids of one moment are in any order


async def test_exactly_one_key_of_the_agents_provider_where_it_needs_one_and_none_else(rig: Rig) -> None:
    headers = await credentials(rig)
    wrong: list[dict[str, Any]] = [
        {"agent": "claude", "prompt": "x"},
        {**CLAUDE, "secrets": {"openai": {"apiKey": KEY}}},
        {**CLAUDE, "secrets": {"anthropic": {"apiKey": KEY}, "openai": {"apiKey": KEY}}},
        {**INLINE, "secrets": {"anthropic": {"apiKey": KEY}}},
        {**CLAUDE, "secrets": {**CLAUDE["secrets"], "mcpServers": [{"name": "nowhere"}]}},  # type: ignore[dict-item]
        {**INLINE, "agent": "nobody"},
        {"prompt": "x"},
        {"agent": "rehearsal"},
        {**INLINE, "prompts": ["y"]},
        {**INLINE, "timeouts": {"run": 25 * 3600}},
    ]
    for body in wrong:
        answer = await submit(rig, headers, body)
        assert answer.status_code == 400, (body, answer.text)
        assert KEY not in answer.text
        assert answer.json()["detail"].startswith("cannot ")
    assert await audited(rig) == ["run.refused"] * len(wrong)
    assert [await count(rig, table) for table in ("run", "vault_bundle", "content_page")] == [0, 0, 0]


LOOK_SECRET: list[tuple[dict[str, object], str, str]] = [
    ({"variables": {"apiKey": "x"}}, "apiKey", "$.variables.apiKey"),
    ({"variables": {"providerApiKey": "x"}}, "providerApiKey", "$.variables.providerApiKey"),
    ({"variables": {"refreshToken": "x"}}, "refreshToken", "$.variables.refreshToken"),
    (
        {"environment": {"envVars": {"GITHUB_TOKEN": "x"}}},
        "GITHUB_TOKEN",
        "$.environment.envVars.GITHUB_TOKEN",
    ),
    (
        {"environment": {"envVars": {"DB_PASSWORD": "x"}}},
        "DB_PASSWORD",
        "$.environment.envVars.DB_PASSWORD",
    ),
    (
        {
            "mcpServers": {
                "m": {"type": "remote", "url": "https://m.example", "headers": {"Authorization": "x"}}
            }
        },
        "Authorization",
        "$.mcpServers.m.headers.Authorization",
    ),
    (
        {"mcpServers": {"m": {"type": "local", "command": "m", "env": {"ACCESS_TOKEN": "x"}}}},
        "ACCESS_TOKEN",
        "$.mcpServers.m.env.ACCESS_TOKEN",
    ),
    (
        {"workspace": {"type": "git", "url": "https://me:canary@host.example/r.git"}},
        "a password",
        "$.workspace.url",
    ),
    (
        {"mcpServers": {"m": {"type": "remote", "url": "https://m.example?api_key=x"}}},
        "api_key",
        "$.mcpServers.m.url",
    ),
]


async def test_what_looks_like_a_secret_elsewhere_is_400_with_name_and_path(rig: Rig) -> None:
    headers = await credentials(rig)
    for more, name, path in LOOK_SECRET:
        answer = await submit(rig, headers, {**INLINE, **more})
        assert answer.status_code == 400, answer.text
        assert answer.json()["data"] == {"name": name, "path": path}
        assert "canary" not in answer.text
    assert await count(rig, "run") == 0


async def test_members_that_nobody_knows_are_400_by_name_wherever_they_stand(rig: Rig) -> None:
    headers = await credentials(rig)
    unknown: list[tuple[dict[str, Any], str | None, str]] = [
        ({**INLINE, "apiKey": "canary"}, "apiKey", "$.apiKey"),
        ({**INLINE, "mcpCredentials": {"a": "canary"}}, "mcpCredentials", "$.mcpCredentials"),
        ({**INLINE, "environment": {"password": "canary"}}, "password", "$.environment.password"),
        (
            {**CLAUDE, "secrets": {"anthropic": {"apiKey": KEY, "accessToken": "canary"}}},
            "accessToken",
            "$.secrets.anthropic.accessToken",
        ),
        ({**INLINE, "capture": False}, None, "$"),
    ]
    for body, name, path in unknown:
        answer = await submit(rig, headers, body)
        assert answer.status_code == 400, answer.text
        assert (answer.json()["data"].get("name"), answer.json()["data"]["path"]) == (name, path)
        assert "canary" not in answer.text
        assert KEY not in answer.text
    assert (await rig.client.post("/v1/runs", content=b"{", headers={**headers, **JSON})).status_code == 400
    assert (await submit(rig, headers, INLINE, **{"Idempotency-Key": "with a blank"})).status_code == 400
    assert await audited(rig) == ["run.refused"] * (len(unknown) + 2)
    assert await count(rig, "run") == 0


async def test_variables_beyond_their_limits_are_refused(rig: Rig) -> None:
    headers = await credentials(rig)
    beyond: list[dict[str, str]] = [
        {f"V{number}": "x" for number in range(65)},
        {"V": "é" * 2049},
        {f"V{number}": "x" * 4096 for number in range(17)},
        {"LEGATION_X": "x"},
        {"LD_PRELOAD": "/tmp/x.so"},
        {"NODE_OPTIONS": "--require /tmp/x.js"},
        {"CLAUDE_CONFIG_DIR": "/tmp/x"},
        {"OPENCODE_PERMISSION": "allow"},
        {"GIT_SSH_COMMAND": "sh"},
        {"PATH": "/tmp"},
        {"V": "a\0b"},
        {"lower": "x"},
        {"1X": "x"},
    ]
    for variables in beyond:
        answer = await submit(rig, headers, {**INLINE, "environment": {"envVars": variables}})
        assert answer.status_code == 400, variables
    plain = {
        "NODE_ENV": "test",
        "GIT_AUTHOR_NAME": "a",
        "PYTHONUNBUFFERED": "1",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
    }
    assert (await submit(rig, headers, {**INLINE, "environment": {"envVars": plain}})).status_code == 201
    most = {**INLINE, "environment": {"envVars": {f"V{number}": "x" * 1024 for number in range(64)}}}
    assert (await submit(rig, headers, most)).status_code == 201


async def test_fifty_concurrent_duplicates_are_one_run_and_another_body_is_409(rig: Rig) -> None:
    headers = await credentials(rig)
    answers = await asyncio.gather(
        *(
            submit(rig, headers, {**CLAUDE, "idempotencyKey": "k1"})
            if number % 2
            else submit(rig, headers, CLAUDE, **{"Idempotency-Key": "k1"})
            for number in range(50)
        )
    )
    assert sorted({answer.status_code for answer in answers}) == [200, 201]
    assert len([answer for answer in answers if answer.status_code == 201]) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1
    rotated = {**CLAUDE, "secrets": {"anthropic": {"apiKey": "another-key-of-theirs"}}}
    again = await submit(rig, headers, rotated, **{"Idempotency-Key": "k1"})
    assert (again.status_code, again.json()["id"]) == (200, answers[0].json()["id"])
    other = await submit(rig, headers, {**CLAUDE, "prompt": "other"}, **{"Idempotency-Key": "k1"})
    assert other.status_code == 409, other.text
    both = await submit(rig, headers, {**CLAUDE, "idempotencyKey": "k2"}, **{"Idempotency-Key": "k1"})
    assert both.status_code == 400
    assert [await count(rig, table) for table in ("run", "vault_bundle")] == [1, 1]
    assert await audited(rig) == ["run.submitted", "run.refused", "run.refused"]
    dump = json.dumps([[str(value) for value in row] for row in await rig.rows("select * from run")])
    assert '"k1"' not in dump


async def test_who_comes_too_often_is_429_and_nothing_is_done(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110), open_rig("sqlite", tmp_path, request, runs_per_minute="3") as rig:
        headers = await credentials(rig)
        for _ in range(3):
            assert (await submit(rig, headers)).status_code == 201
        before = [await count(rig, table) for table in ("run", "vault_bundle", "content_page")]
        for _ in range(15):
            answer = await submit(rig, headers, CLAUDE)
            assert answer.status_code == 429
            assert answer.json()["data"]["retryAfter"] >= 1
        assert [await count(rig, table) for table in ("run", "vault_bundle", "content_page")] == before
        assert (await audited(rig)).count("run.refused") == 10  # a flood leaves no more
        batch = {"runs": [INLINE] * 4}
        assert (await rig.client.post("/v1/runs:batch", json=batch, headers=headers)).status_code == 429
        rig.clock.advance(60)
        assert (await submit(rig, headers)).status_code == 201


async def test_a_batch_takes_each_by_itself(rig: Rig) -> None:
    headers = await credentials(rig)
    runs: list[object] = [{**INLINE, "prompt": f"number {number}"} for number in range(100)]
    runs[7] = {"agent": "claude", "prompt": "no key"}
    runs[8] = {"agent": 5}
    runs[9] = {**INLINE, "idempotencyKey": "twice"}
    runs[10] = {**INLINE, "idempotencyKey": "twice"}
    runs[11] = {**INLINE, "prompt": "other", "idempotencyKey": "twice"}
    answer = await rig.client.post("/v1/runs:batch", json={"runs": runs}, headers=headers)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert len(results) == 100
    refused = {number: each["problem"]["status"] for number, each in enumerate(results) if each["problem"]}
    assert refused == {7: 400, 8: 400, 11: 409}
    assert results[9]["run"]["id"] == results[10]["run"]["id"]
    assert (results[9]["created"], results[10]["created"]) == (True, False)
    assert await count(rig, "run") == 96
    assert (await audited(rig)).count("run.refused") == 3
    assert (await spec_of(rig, results[42]["run"]["id"])).prompts == ["number 42"]
    whole = {"runs": [INLINE] * 1000}
    answer = await rig.client.post("/v1/runs:batch", json=whole, headers=headers)
    assert answer.status_code == 200, answer.text
    assert await count(rig, "run") == 1096
    too_many = {"runs": [INLINE] * 1001}
    assert (await rig.client.post("/v1/runs:batch", json=too_many, headers=headers)).status_code == 400


async def test_of_a_key_in_a_batch_the_first_wins_however_far_apart_they_are(rig: Rig) -> None:
    headers = await credentials(rig)
    firsts = [{**INLINE, "idempotencyKey": f"key-{number}"} for number in range(150)]
    others = [{**each, "prompt": "other"} for each in reversed(firsts)]
    answer = await rig.client.post("/v1/runs:batch", json={"runs": [*firsts, *others]}, headers=headers)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert all(each["created"] for each in results[:150])
    assert [each["problem"]["status"] for each in results[150:]] == [409] * 150
    assert await count(rig, "run") == 150


async def test_of_a_batch_with_one_that_is_refused_nothing_is_left_in_memory(rig: Rig) -> None:
    headers = await credentials(rig)
    runs = [
        {"agent": "claude", "prompt": "no key"},
        {"template": "tpl_unknown"},
        INLINE,
    ]
    gc.collect()
    gc.disable()
    try:
        assert (
            await rig.client.post("/v1/runs:batch", json={"runs": runs}, headers=headers)
        ).status_code == 200
        assert [each for each in gc.get_objects() if type(each) in (RunSubmission, _Ready)] == []
    finally:
        gc.enable()


async def test_a_template_is_its_hash_and_fills_its_variables(rig: Rig) -> None:
    headers = await credentials(rig)
    run = {
        "agent": "rehearsal",
        "prompts": ["fix {{ what }} in {{where}}"],
        "workspace": {"type": "git", "url": "https://host.example/{{where}}.git"},
    }
    made = await rig.client.post("/v1/templates", json={"name": "fix", "run": run}, headers=headers)
    assert made.status_code == 200, made.text
    reordered = {"run": dict(reversed(run.items())), "name": "fix"}
    again = await rig.client.post("/v1/templates", json=reordered, headers=headers)
    assert (again.status_code, again.json()["hash"]) == (200, made.json()["hash"])
    other = await rig.client.post("/v1/templates", json={"name": "fix2", "run": run}, headers=headers)
    assert other.json()["hash"] != made.json()["hash"]
    secret = {**run, "environment": {"envVars": {"API_KEY": "x"}}}
    refused = await rig.client.post("/v1/templates", json={"name": "bad", "run": secret}, headers=headers)
    assert refused.status_code == 400
    listed = await rig.client.get("/v1/templates", headers=headers)
    assert [each["name"] for each in listed.json()["items"]] == ["fix", "fix2"]
    id_, hash_ = made.json()["id"], made.json()["hash"]
    for name in (id_, hash_):
        read = await rig.client.get(f"/v1/templates/{name}", headers=headers)
        assert read.json()["run"]["prompts"] == run["prompts"]
        body = {"template": name, "variables": {"what": "it", "where": "here"}, "cleanup": {"retain": True}}
        answer = await submit(rig, headers, body)
        assert answer.status_code == 201, answer.text
        assert (answer.json()["template"], answer.json()["templateHash"]) == (id_, hash_)
        spec = await spec_of(rig, answer.json()["id"])
        assert spec.prompts == ["fix it in here"]
        assert spec.cleanup.retain
        assert getattr(spec.workspace, "url", None) == "https://host.example/here.git"
    for wrong in (
        {"template": id_},
        {"template": id_, "variables": {"what": "a", "where": "b", "why": "c"}},
        {"template": id_, "agent": "rehearsal", "variables": {"what": "a", "where": "b"}},
    ):
        assert (await submit(rig, headers, wrong)).status_code == 400
    stranger = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    answers = [
        await submit(rig, who, {"template": name})
        for who, name in ((stranger, id_), (headers, "tpl_absent"), (stranger, hash_))
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.json()["detail"] for answer in answers}) == 1


async def test_a_password_that_comes_into_an_address_by_a_variable_is_refused(rig: Rig) -> None:
    headers = await credentials(rig)
    place = {"type": "git", "url": "https://{{who}}@host.example/a.git"}
    body = {**INLINE, "workspace": place, "variables": {"who": "me:canary"}}
    answer = await submit(rig, headers, body)
    assert (answer.status_code, answer.json()["data"]) == (
        400,
        {"name": "a password", "path": "$.workspace.url"},
    )
    assert "canary" not in answer.text


async def test_lists_are_filtered_searched_and_paged(rig: Rig) -> None:
    headers = await credentials(rig)
    ids = [
        (await submit(rig, headers, {**INLINE, "prompt": str(number)})).json()["id"] for number in range(5)
    ]
    claude = (await submit(rig, headers, CLAUDE)).json()["id"]

    async def listed(query: str = "") -> dict[str, Any]:
        answer = await rig.client.get(f"/v1/runs{query}", headers=headers)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    assert [each["id"] for each in (await listed())["items"]] == [claude, *reversed(ids)]
    first = await listed("?limit=4")
    second = await listed(f"?limit=4&after={first['next']}")
    assert [each["id"] for each in (*first["items"], *second["items"])] == [claude, *reversed(ids)]
    assert second["next"] is None
    assert [each["id"] for each in (await listed("?agent=claude"))["items"]] == [claude]
    assert [each["id"] for each in (await listed("?search=cla"))["items"]] == [claude]
    assert [each["id"] for each in (await listed(f"?search={ids[2]}"))["items"]] == [ids[2]]
    assert len((await listed("?state=queued&active=true"))["items"]) == 6
    assert (await listed("?active=false"))["items"] == []
    assert len((await listed(f"?creator={rig.people['operator']}"))["items"]) == 6
    assert (await rig.client.get("/v1/runs?state=nowhere", headers=headers)).status_code == 400


async def test_another_workspaces_run_is_404_like_an_absent_one(rig: Rig) -> None:
    headers = await credentials(rig)
    stranger = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    run = (await submit(rig, headers)).json()["id"]
    for method, below in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/events/sse"),
        ("POST", "/cancel"),
        ("POST", "/resume"),
    ):
        foreign = await rig.client.request(method, f"/v1/runs/{run}{below}", headers=stranger)
        absent = await rig.client.request(method, f"/v1/runs/run_0{below}", headers=stranger)
        assert (foreign.status_code, absent.status_code) == (404, 404), (method, below, foreign.text)
        said, wanted = (answer.json()["detail"].replace(run, "run_0") for answer in (foreign, absent))
        assert said == wanted
    assert (await rig.client.get("/v1/runs", headers=stranger)).json()["items"] == []
    found = await rig.services.database.read(find_run, "local", run)
    assert found is not None
    assert found.cancel_requested_at is None


async def test_a_cancel_is_noted_once_and_attribution_outlives_token_and_user(rig: Rig) -> None:
    token, secret = await rig.token(rig.people["operator"], "operate", "read")
    headers = {"authorization": f"Bearer {secret}"}
    run = (await submit(rig, headers)).json()["id"]
    for _ in range(2):
        answer = await rig.client.post(f"/v1/runs/{run}/cancel", headers=headers)
        assert answer.status_code == 200
        assert answer.json()["cancelRequestedAt"] is not None
    owner = await credentials(rig, "owner")
    assert (await rig.client.delete(f"/v1/tokens/{token}", headers=owner)).status_code == 204
    await rig.remove(rig.people["operator"])
    told = (await rig.client.get(f"/v1/runs/{run}", headers=owner)).json()
    assert (told["creator"], told["creatorUser"]) == (token, rig.people["operator"])
    assert list(await audited(rig)) == ["run.submitted", "run.cancelled"]


async def test_a_failed_run_goes_on_with_secrets_sent_anew_and_no_other_does(rig: Rig) -> None:
    headers = await credentials(rig)
    run = (await submit(rig, headers, CLAUDE)).json()["id"]
    path = f"/v1/runs/{run}/resume"
    secrets = {"secrets": {"anthropic": {"apiKey": "another-key-of-theirs"}}}
    assert (await rig.client.post(path, json=secrets, headers=headers)).status_code == 409
    # As a worker leaves it: no lease, its secrets destroyed.
    await rig.services.vault.destroy_all("local", run)
    await rig.rows(
        "update run set state = 'failed', outcome = 'failed', error_class = 'machine_lost', secret_id = null, "
        f"attempt = 1, next_check_at = null, ended_at = 1, cleanup = 'succeeded' where id = '{run}'"
    )
    assert (await rig.client.post(path, json={}, headers=headers)).status_code == 400
    answer = await rig.client.post(path, json=secrets, headers=headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["state"], told["errorClass"], told["attempt"], told["endedAt"]) == ("queued", None, 1, None)
    found = await rig.services.database.read(find_run, "local", run)
    assert found is not None
    assert found.secret_id is not None
    assert found.next_check_at is not None
    opened = await rig.services.vault.open("local", run, found.secret_id)
    assert opened["ANTHROPIC_API_KEY"].reveal() == "another-key-of-theirs"
    assert (await rig.client.post(path, json=secrets, headers=headers)).status_code == 409
    assert "run.resumed" in await audited(rig)
