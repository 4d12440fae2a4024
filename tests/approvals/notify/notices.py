"""Approvals and notices for the tests, and what they trust."""

import ssl
from pathlib import Path
from typing import Any

from tests.approvals.installation import MINUTE, NOW

from legation.approvals.approval import Approval, ApprovalState, NoticeKind, NoticeReason
from legation.approvals.notify.notice import ApprovalNotice

PUBLIC_URL = "https://legation.example"
LIMIT = 60.0  # the test's time, for what has no reason to take any


def approval(**given: Any) -> Approval:
    values: dict[str, Any] = dict.fromkeys(Approval.__struct_fields__)
    values |= {
        "id": "apr_01hf7yat00abcdefghjkmnpqrs",
        "workspace_id": "local",
        "trace_id": "0" * 31 + "1",
        "waiter": "session:ses_1",
        "holder": "ins_1",
        "outlives": False,
        "requester_kind": "token",
        "requester": "tok_agent",
        "agent": "claude",
        "tool": "filesystem.write_file",
        "kind": "edit",
        "action_digest": "d" * 64,
        "policy_version": "v1",
        "policy_rule": "claude:rule-2",
        "verdict": "human_approval",
        "needs": "person",
        "injection_risk": False,
        "argument_bytes": 42,
        "argument_names": "content,path",
        "content_owner": "day-2023-11-14",
        "group_key": "g" * 32,
        "status": ApprovalState.PENDING,
        "created_at": NOW,
        "expires_at": NOW + 5 * MINUTE,
    }
    return Approval(**(values | given))


def notice(
    kind: NoticeKind = "asked", why: NoticeReason = "policy", now: int = NOW, **given: Any
) -> ApprovalNotice:
    reviewers = given.pop("reviewers", ())
    return ApprovalNotice.of(approval(**given), kind, why, PUBLIC_URL, now, reviewers)


def trusting(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    return context


def serving(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
