"""Health, readiness, the server's own words, and files behind signed links, through the real application."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.server.rig import Rig, open_rig

from legation.errors import StorageFailed
from legation.store.blobs import workspace_key

pytestmark = pytest.mark.heavy


@pytest.fixture
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with open_rig("sqlite", tmp_path, request) as made:
        yield made


async def test_a_file_is_given_to_whoever_has_its_link(rig: Rig) -> None:
    key = workspace_key("local", "run_1", "out.html")
    await rig.services.blobs.put(key, b"<script>alert(1)</script>")
    link = urlsplit(
        await rig.services.blobs.link(key, expires_in=60, filename="out.html", content_type="text/html")
    )
    answer = await rig.knock("GET", f"{link.path}?{link.query}", {})
    assert (answer.status, answer.body) == (200, b"<script>alert(1)</script>")
    assert answer.headers["content-disposition"] == 'attachment; filename="out.html"'
    assert "sandbox" in answer.headers["content-security-policy"]
    head = await rig.knock("HEAD", f"{link.path}?{link.query}", {})
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "25")


async def test_a_changed_or_old_link_gives_nothing(rig: Rig) -> None:
    key = workspace_key("local", "run_1", "out")
    await rig.services.blobs.put(key, b"data")
    link = urlsplit(await rig.services.blobs.link(key, expires_in=60))
    changed = link.query.replace("run_1", "run_2")
    assert (await rig.knock("GET", f"{link.path}?{changed}", {})).status == 403
    rig.clock.advance(61)
    late = await rig.knock("GET", f"{link.path}?{link.query}", {})
    assert (late.status, json.loads(late.body)["data"]["reason"]) == (403, "expired")


async def test_a_file_that_is_gone_is_not_found(rig: Rig) -> None:
    link = urlsplit(await rig.services.blobs.link(workspace_key("local", "run_1", "never"), expires_in=60))
    assert (await rig.knock("GET", f"{link.path}?{link.query}", {})).status == 404


async def test_it_is_ready_only_if_the_database_answers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await rig.knock("GET", "/v1/ready", {})).status == 200

    async def broken() -> None:
        raise StorageFailed("cannot use the database: it is gone")

    monkeypatch.setattr(rig.services.database, "ping", broken)
    answer = await rig.knock("GET", "/v1/ready", {})
    assert (answer.status, json.loads(answer.body)["data"]) == (503, {"failing": ["database"]})
    assert (await rig.knock("GET", "/v1/health", {})).status == 200


async def test_the_life_of_the_server_is_in_its_stream_and_in_the_audit_log(rig: Rig) -> None:
    owner = await rig.bearer(rig.people["owner"])
    events = json.loads((await rig.knock("GET", "/v1/streams/server/events", owner)).body)["items"]
    assert [event["type"] for event in events] == ["server-started"]
    assert "server.started" in await rig.actions()
