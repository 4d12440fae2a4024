import json

import msgspec
import pytest
from tests.approvals.installation import MINUTE, NOW
from tests.approvals.notify.notices import notice

from legation.approvals.notify import ApprovalNotice


def test_a_notice_says_what_waits_for_whom_and_until_when() -> None:
    made = notice(now=NOW + 30_000, reviewers=["ops", "alice"], injection_risk=True)
    assert json.loads(made.encode()) == {
        "kind": "asked",
        "approval_id": "apr_01hf7yat00abcdefghjkmnpqrs",
        "workspace": "local",
        "agent": "claude",
        "tool": "filesystem.write_file",
        "action_kind": "edit",
        "policy_rule": "claude:rule-2",
        "why": "policy",
        "argument_names": "content,path",
        "argument_bytes": 42,
        "injection_risk": True,
        "created_at": "2023-11-14T22:13:20Z",
        "expires_at": "2023-11-14T22:18:20Z",
        "remaining": "4m30s",
        "url": "https://legation.example/ui/inbox/apr_01hf7yat00abcdefghjkmnpqrs",
        "reviewers": ["ops", "alice"],
        "more": 0,
    }


def test_it_is_one_line_that_reads_back_as_itself() -> None:
    made = notice(agent="two\nlines\u2028three", tool="café")
    assert b"\n" not in made.encode()
    assert msgspec.json.decode(made.encode(), type=ApprovalNotice) == made


def test_its_id_differs_between_the_first_and_the_reminder_and_not_otherwise() -> None:
    first, later, reminder = notice(), notice(now=NOW + 7000), notice("reminder")
    assert first.id == later.id == reminder.asked_id
    assert reminder.id != first.id
    assert notice(id="apr_other").id != first.id


@pytest.mark.parametrize("id", ["a.b", "x" * 200, "zwölf", "a b", "a/../b"])
def test_an_unusual_id_of_an_approval_is_harmless_in_headers_and_links(id: str) -> None:  # noqa: A002
    made = notice(id=id)
    assert made.id.isascii()
    assert made.id.replace("-", "").replace("_", "").isalnum()
    assert len(made.id) <= 128 + len("-reminder")
    assert made.url.isascii()
    assert made.url.count("/") == len(["https:", "", "host", "ui", "inbox"])


def test_half_a_surrogate_pair_from_a_policy_file_does_not_stop_it() -> None:
    assert json.loads(notice(reviewers=["\ud800ops"]).encode())["reviewers"] == ["?ops"]


def test_it_knows_when_its_approval_has_expired() -> None:
    made = notice(expires_at=NOW + MINUTE + 1)
    assert not made.expired(NOW + MINUTE)
    assert made.expired(NOW + MINUTE + 1)
