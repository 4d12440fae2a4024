"""D8: what is in the arguments of a call is in no notice, whichever way it goes."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from tests.approvals.installation import NOW, Installation
from tests.approvals.notify.mail_server import sinking
from tests.approvals.notify.notices import LIMIT, PUBLIC_URL
from tests.approvals.notify.webhook_server import receiving

from legation.approvals.notify import ApprovalNotice, Notifier
from legation.approvals.notify.command import CommandChannel
from legation.approvals.notify.mail import MailChannel
from legation.approvals.notify.webhook import WebhookChannel
from legation.secret import Secret
from legation.testing.clock import FakeClock
from legation.wire.action import Action

pytestmark = pytest.mark.heavy

CANARY = "C4n4ry"
PARAMS = {
    "path": f"/p/{CANARY}",
    "content": CANARY,
    "list": [CANARY, {"deep": CANARY}],
    f"a key with {CANARY}": 1,
    CANARY * 20: 2,
    "number": 4242424242,
}
KEEP = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"


async def test_d8_a_notice_holds_no_arguments_through_any_channel(
    installation: Installation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    action = Action(
        agent="claude",
        tool="shell",
        kind="execute",
        params=PARAMS,
        paths=(f"/p/{CANARY}",),
        command=f"echo {CANARY}",
        urls=(f"https://{CANARY}.example",),
    )
    approval = await installation.ask(action, verdict="human_approval", session_id="ses_1")
    file, clock, failures = tmp_path / "kept", FakeClock(NOW), list[str]()
    async with receiving(200) as receiver, sinking() as sink:
        channels = (
            WebhookChannel(Secret(receiver.url(), "notify_webhook"), Secret("sixteen-letters-"), clock),
            CommandChannel((sys.executable, "-c", KEEP, str(file)), environ={"PATH": os.environ["PATH"]}),
            MailChannel(Secret(sink.url(), "notify_smtp"), "l@example.com", ("o@example.com",), clock),
        )
        for kind in ("asked", "reminder"):  # each by itself: at once they would be gathered
            async with Notifier(
                channels, clock, lambda _, why: failures.append(why), grace=LIMIT
            ) as notifier:
                notifier.notify(ApprovalNotice.of(approval, kind, "policy", PUBLIC_URL, NOW, ("ops",)))
                await asyncio.sleep(0)
    assert failures == []
    hooks = [json.dumps(got.headers).encode() + got.body for got in receiver.received]
    mails = [letter.raw + letter.message.get_content().encode() for letter in sink.letters]
    lines = file.read_bytes().splitlines()
    for went_out in (hooks, mails, lines):
        assert len(went_out) == 2
        for each in went_out:
            assert b"shell" in each  # it is the notice
            assert CANARY.encode() not in each
            assert b"4242424242" not in each
    assert CANARY not in caplog.text
