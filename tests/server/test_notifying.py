"""What reaches a person is told by a real server, through its settings, and once more before it expires."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.approvals.notify.webhook_server import receiving
from tests.server.rig import open_rig

from legation.approvals.notify.webhook import verify
from legation.approvals.policy.facts import Facts
from legation.approvals.request import DoorRequest
from legation.wire.action import Action

pytestmark = pytest.mark.heavy

SECRET = "a-secret-of-the-receiver"
POLICY = """
name: p
agent: "*"
rules: [{id: mails, tools: mail.send, action: human_approval, timeout: 400s, reviewers: [Ada]}]
"""


async def test_a_person_is_told_at_once_and_before_the_expiry_without_any_argument(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with (
        receiving(200) as receiver,
        open_rig(
            "sqlite",
            tmp_path / "data",
            request,
            policy=policy,
            public_url=None,
            notify_webhook=receiver.url(),
            notify_webhook_secret=SECRET,
        ) as rig,
    ):
        asked = DoorRequest(
            principal=rig.server,
            action=Action(agent="a", tool="mail.send", params={"to": "canary"}),
            facts=Facts(),
        )
        running = asyncio.create_task(rig.services.door.decide(asked))
        first = await asyncio.wait_for(receiver.arrived.get(), 20)
        now = rig.clock.now_ms() / 1000
        assert verify(SECRET, first.headers, first.body, now=now).endswith("-asked")
        notice = json.loads(first.body)
        assert (notice["kind"], notice["why"], notice["reviewers"]) == ("asked", "policy", ["Ada"])
        assert b"canary" not in first.body
        assert notice["url"] == f"{rig.services.address.browser_url}/ui/inbox/{notice['approval_id']}"
        assert rig.services.address.browser_url != rig.services.public_url  # where nobody is signed in
        for _ in range(61):
            rig.clock.advance(5)
            await asyncio.sleep(0.005)
        second = await asyncio.wait_for(receiver.arrived.get(), 20)
        assert json.loads(second.body)["kind"] == "reminder"
        running.cancel()
