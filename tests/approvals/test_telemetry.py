"""Calls as spans, received by a real OTLP collector over HTTP."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.approvals.installation import MINUTE, NO, NOW, SUPERVISOR, Installation, principal, write_file

from legation.approvals.approval import ApprovalAnswer
from legation.approvals.trace import entries
from legation.approvals.trace import telemetry as telemetries
from legation.approvals.trace.export import ExportedStep, lines
from legation.approvals.trace.step import StepDraft, StepKind, TracedCall, decided, new_trace_id, proposed
from legation.approvals.trace.telemetry import Telemetry
from legation.errors import ConfigInvalid
from legation.wire.api.approvals import TraceEntry, rfc3339

pytestmark = pytest.mark.heavy

# Every member of an entry, and where a span has it.
ATTRIBUTES = {
    "session_id": "gen_ai.conversation.id",
    "agent_id": "gen_ai.agent.id",
    "tool": "gen_ai.tool.name",
    "digest": "legation.action.digest",
    "policy": "legation.policy",
    "policy_rule": "legation.policy.rule",
    "status_code": "http.response.status_code",
    "latency_ms": "legation.latency.ms",
    "error": "error.message",
    "approval_id": "legation.approval.id",
    "approval_status": "legation.approval.status",
    "approved_by": "legation.approval.by",
    "approval_ms": "legation.approval.ms",
    "supervisor_reasoning": "legation.supervisor.reasoning",
    "supervisor_confidence": "legation.supervisor.confidence",
    "turn_id": "legation.turn.id",
    "tool_call_id": "gen_ai.tool.call.id",
    "reason": "legation.reason",
}
OF_THE_SPAN = {"trace_id", "timestamp"}
NEVER_SENT = {"params", "approved_by_name"}


class Collector(ThreadingHTTPServer):
    """Keeps what it is sent, and decodes it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> dict[str, Span]:
        found = {}
        for body in self.bodies:
            request = ExportTraceServiceRequest.FromString(body)
            for scope in (scope for each in request.resource_spans for scope in each.scope_spans):
                found.update({span.trace_id.hex(): span for span in scope.spans})
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS", raising=False)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
async def telemetry(installation: Installation, collector: Collector) -> AsyncIterator[Telemetry]:
    async with Telemetry(collector.url, installation.database, installation.sealer, server="srv-1") as made:
        yield made


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in span.attributes}


def simple(verdict: Any = "allow", **returned: Any) -> list[StepDraft]:
    """A call that nobody was asked about."""
    action = write_file()
    call = TracedCall(
        trace_id=new_trace_id(), agent="claude", tool=action.tool, session_id="ses_1", turn_id="trn_1"
    )
    drafts = [proposed(call, action, action.digest("v1")), decided(call, verdict, "claude:rule-1", "v1")]
    if returned:
        drafts.append(StepDraft(step=StepKind.RETURNED, call=call, **returned))
    return drafts


async def calls_of_every_kind(installation: Installation) -> dict[str, str]:
    """Their trace ids, by how they ended."""
    approved = await installation.ask(session_id="ses_1", turn_id="trn_1", tool_call_id="call_1")
    said = ApprovalAnswer(approve=True, reasoning="in the project", confidence=0.95)
    await installation.answer(approved, said, SUPERVISOR, NOW + 1500)
    await installation.consume(approved, NOW + 1501)
    returned = StepDraft(
        step=StepKind.RETURNED, call=approved.call, contents={"result": 1}, status_code=200, latency_ms=42
    )
    await installation.ledger.append("local", [returned], NOW + 1550)
    denied = await installation.ask()
    await installation.answer(denied, NO, now=NOW + 20)
    expired = await installation.ask()
    await installation.do(
        installation.approvals.cancel, "local", [(await installation.ask()).id], "caller-gone", NOW + 1
    )
    from legation.approvals.approval import ApprovalChange

    await installation.do(
        installation.approvals.end_all,
        "local",
        [expired.id],
        ApprovalChange.EXPIRE,
        NOW + 5 * MINUTE,
        "unanswered",
    )
    error = {"error": "backend said: no such file"}
    failed = await installation.ledger.append(
        "local", simple(contents=error, status_code=502, latency_ms=7), NOW + 30
    )
    refused = await installation.ledger.append("local", simple("deny"), NOW + 40)
    granted_call = TracedCall(trace_id=new_trace_id(), agent="claude", tool="t")
    grant = principal("grant", "grt_1", 0)
    granted = [
        proposed(granted_call, write_file(tool="t"), "d"),
        decided(granted_call, "supervisor", "claude:rule-2", "v1", reason="granted", by=grant),
    ]
    await installation.ledger.append("local", granted, NOW + 50)
    return {
        "approved": approved.trace_id,
        "denied": denied.trace_id,
        "expired": expired.trace_id,
        "failed": failed[0].trace_id,
        "refused": refused[0].trace_id,
        "granted": granted_call.trace_id,
    }


async def exported_entries(installation: Installation) -> dict[str, TraceEntry]:
    """From the lines of the export alone."""
    steps: dict[str, list[Any]] = {}
    words: dict[tuple[str, int], dict[str, object]] = {}
    async for raw in lines(installation.database, installation.sealer, "local", "srv-1"):
        line = msgspec.json.decode(raw, type=ExportedStep)
        steps.setdefault(line.step.trace_id, []).append(line.step)
        words[line.step.server, line.step.seq] = {
            name: json.loads(bytes(content.value)) for name, content in line.content.items()
        }
    return {trace: entries.entry(found, words) for trace, found in steps.items()}


async def test_d7_api_export_and_span_agree_on_every_field(
    installation: Installation, collector: Collector
) -> None:
    made = await calls_of_every_kind(installation)
    async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
        for trace in made.values():
            telemetry.ended("local", trace)
    assert {*TraceEntry.__struct_fields__} == {*ATTRIBUTES} | OF_THE_SPAN | NEVER_SENT
    api = {entry.trace_id: entry for entry in await installation.entries()}
    disk, spans = await exported_entries(installation), collector.spans
    assert spans.keys() == set(made.values())
    for trace in made.values():
        assert disk[trace] == api[trace]
        entry, shown = api[trace], attributes(spans[trace])
        assert {name: shown.pop(at, None) for name, at in ATTRIBUTES.items()} == {
            name: getattr(entry, name) for name in ATTRIBUTES
        }
        assert shown == {"gen_ai.operation.name": "execute_tool"}
        assert rfc3339(spans[trace].start_time_unix_nano // 1_000_000) == entry.timestamp
    # And that they say what happened, held against words written here.
    approved = api[made["approved"]]
    assert (approved.approved_by, approved.supervisor_reasoning) == ("agent:supervisor", "in the project")
    assert (approved.status_code, approved.latency_ms, approved.tool_call_id) == (200, 42, "call_1")
    assert api[made["denied"]].approved_by == "user:usr_1"
    assert (api[made["expired"]].approval_status, api[made["expired"]].reason) == ("expired", "unanswered")
    assert api[made["failed"]].error == "backend said: no such file"
    assert api[made["granted"]].approved_by == "grant:grt_1"


async def test_a_span_has_its_tool_its_times_and_whether_it_was_refused(
    installation: Installation, collector: Collector
) -> None:
    made = await calls_of_every_kind(installation)
    async with Telemetry(
        collector.url, installation.database, installation.sealer, server="srv-1"
    ) as telemetry:
        for trace in made.values():
            telemetry.ended("local", trace)
    spans = {name: collector.spans[trace] for name, trace in made.items()}
    assert {name: (span.status.code, span.status.message) for name, span in spans.items()} == {
        "approved": (0, ""),
        "denied": (2, "denied"),
        "expired": (2, "expired"),
        "failed": (2, "failed with 502"),
        "refused": (2, "refused by claude:rule-1"),
        "granted": (0, ""),
    }
    assert spans["approved"].name == "execute_tool filesystem.write_file"
    assert spans["approved"].end_time_unix_nano - spans["approved"].start_time_unix_nano == 1550 * 1_000_000
    assert {*collector.paths} == {"/v1/traces"}
    (resource,) = {str(ExportTraceServiceRequest.FromString(body).resource_spans[0].resource)
                   for body in collector.bodies}  # fmt: skip
    assert "legation" in resource
    assert "srv-1" in resource


async def test_no_argument_and_no_result_leaves_the_house(
    installation: Installation, collector: Collector
) -> None:
    drafts = simple(contents={"result": "canary-result"}, status_code=200)
    steps = await installation.ledger.append("local", drafts, NOW)
    async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
        telemetry.ended("local", steps[0].trace_id)
    sent = b"".join(collector.bodies)
    assert b"claude:rule-1" in sent
    assert b"package main" not in sent
    assert b"canary-result" not in sent


async def test_d7_a_call_that_waits_is_not_sent_and_one_that_is_not_there_neither(
    installation: Installation, collector: Collector
) -> None:
    pending = await installation.ask()
    async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
        telemetry.ended("local", pending.trace_id)
        telemetry.ended("local", "0" * 32)
        telemetry.ended("other", pending.trace_id)
    assert (collector.bodies, telemetry.sent, telemetry.lost) == ([], 0, 0)


async def test_words_that_protobuf_cannot_hold_cost_nothing(
    installation: Installation, collector: Collector
) -> None:
    error = {"error": "lone \ud800, and long " + "x" * 50_000}
    broken = await installation.ledger.append("local", simple(contents=error, status_code=500), NOW)
    good = await installation.ledger.append("local", simple(status_code=200), NOW)
    async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
        telemetry.ended("local", broken[0].trace_id)
        telemetry.ended("local", good[0].trace_id)
    assert collector.spans.keys() == {broken[0].trace_id, good[0].trace_id}
    message = attributes(collector.spans[broken[0].trace_id])["error.message"]
    assert message.startswith("lone ?, and long x")
    assert len(message) == telemetries.LONGEST_TEXT


async def test_a_call_that_is_sent_twice_is_the_same_span(
    installation: Installation, collector: Collector
) -> None:
    steps = await installation.ledger.append("local", simple("deny"), NOW)
    for _ in range(2):
        async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
            telemetry.ended("local", steps[0].trace_id)
    first, second = (ExportTraceServiceRequest.FromString(body) for body in collector.bodies)
    assert first.resource_spans[0].scope_spans == second.resource_spans[0].scope_spans


async def test_a_dead_collector_disturbs_nobody(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetries, "FLUSH_LIMIT", 0.3)
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        steps = await installation.ledger.append("local", simple("deny"), NOW)
        began = time.monotonic()
        async with Telemetry(url, installation.database, installation.sealer, export_limit=0.2) as telemetry:
            for _ in range(50):
                telemetry.ended("local", steps[0].trace_id)
            await installation.ledger.append("local", simple("deny"), NOW)  # goes on as ever
    assert time.monotonic() - began < 5
    assert (telemetry.sent, (await installation.verify()).ok) == (0, True)


async def test_a_collector_that_refuses_is_counted_and_one_that_recovers_is_used(
    installation: Installation, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    steps = await installation.ledger.append("local", simple("deny"), NOW)
    async with Telemetry(collector.url, installation.database, installation.sealer) as telemetry:
        telemetry.ended("local", steps[0].trace_id)
        await _until(lambda: telemetry.lost == 1)
        collector.status = 200
        telemetry.ended("local", steps[0].trace_id)
    assert (telemetry.sent, telemetry.lost) == (1, 1)
    assert "the collector did not take them" in caplog.text


async def test_a_collector_that_never_answers_holds_up_neither_calls_nor_the_end(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetries, "FLUSH_LIMIT", 0.3)
    monkeypatch.setattr(telemetries, "MOST_WAITING", 10)
    steps = await installation.ledger.append("local", simple("deny"), NOW)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        async with Telemetry(url, installation.database, installation.sealer, export_limit=1.0) as telemetry:
            for _ in range(50):
                telemetry.ended("local", steps[0].trace_id)
            assert telemetry.lost == 40  # ten may wait
        assert time.monotonic() - began < 5
    telemetry.ended("local", steps[0].trace_id)  # after the end: lost, and no error
    assert telemetry.lost == 41


async def test_a_call_that_cannot_be_read_does_not_end_telemetry(
    installation: Installation, collector: Collector, telemetry: Telemetry
) -> None:
    bad = await installation.ledger.append("local", simple("deny"), NOW)
    body = "x'00'" if installation.database.dialect == "sqlite" else "'\\x00'::bytea"
    await installation.sql(f"update trace_content set body = {body}")
    telemetry.ended("local", bad[0].trace_id)
    await _until(lambda: telemetry.lost == 1)
    good = await installation.ledger.append("local", simple("deny"), NOW)
    telemetry.ended("local", good[0].trace_id)
    await _until(lambda: telemetry.sent == 1)
    assert collector.spans.keys() == {good[0].trace_id}


def test_without_the_extra_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    del tmp_path
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigInvalid, match=r"legation\[otel\]"):
        Telemetry("http://127.0.0.1:4318", None, None)  # type: ignore[arg-type]


async def _until(true: Any) -> None:
    """The collector's answer is seen in a thread of its own: there is no event of ours to wait for."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)
