"""What docs/notifications.md shows is what happens."""

import json
import re
from pathlib import Path
from typing import Any

from tests.approvals.installation import NOW
from tests.approvals.notify.notices import notice
from tests.approvals.notify.webhook_server import receiving

from legation.approvals.notify.webhook import WebhookChannel
from legation.clock import SystemClock
from legation.secret import Secret

PAGE = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text()
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def block(language: str, beginning: str) -> str:
    (found,) = (
        text
        for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        if text.startswith(beginning)
    )
    return str(found)


def test_the_notice_on_the_page_is_one() -> None:
    shown = json.loads(block("json", "{"))
    assert shown == json.loads(notice(now=NOW + 30_000, reviewers=["ops"]).encode())


async def test_the_plain_check_on_the_page_accepts_ours_and_nothing_else() -> None:
    names: dict[str, Any] = {}
    exec(block("python", "import base64"), names)
    verify = names["verify"]
    async with receiving(200) as receiver:
        await WebhookChannel(Secret(receiver.url(), "notify_webhook"), Secret(KEY), SystemClock()).send(
            notice()
        )
    (got,) = receiver.received
    assert verify(KEY, got.headers, got.body)
    assert not verify(KEY, got.headers, got.body + b" ")
    assert not verify("whsec_c2l4dGVlbi1sZXR0ZXJzLQ==", got.headers, got.body)
    assert not verify(KEY, got.headers | {"webhook-timestamp": "1614265330"}, got.body)
