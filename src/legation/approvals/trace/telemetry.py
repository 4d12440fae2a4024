"""Calls as OpenTelemetry spans, sent to a collector when they have ended (extra `otel`).

INV-O1  A call is sent when it is over, joined from its steps as the API joins them: never at its beginning, when
        nobody knows yet who approved it and what became of it.
INV-O2  Nobody waits for telemetry. What a dead or slow collector does not take is dropped and counted; the trace
        itself is in the database and is not touched by it.

Arguments and results stay here. What is sent is `otel_attributes`: names, ids, verdicts, times, and the words of
supervisors and of failed tools.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

import legation
from legation.approvals.trace import entries
from legation.approvals.trace.export import Attribute, otel_attributes
from legation.errors import ConfigInvalid
from legation.store.database.transaction import Database
from legation.store.secrets.sealer import Sealer
from legation.wire.api.approvals import TraceEntry

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status


MOST_WAITING: Final = 2048  # ended calls that the collector has not taken yet; only their ids are kept
BATCH: Final = 128  # spans in one request
LONGEST_TEXT: Final = 16_384  # characters of one attribute: as long as a supervisor's words may be
EXPORT_LIMIT: Final = 5.0  # seconds: the collector's time for one batch, tries included
FLUSH_LIMIT: Final = 3.0  # seconds at the end: the time of whoever stops the server

_REFUSED: Final = frozenset({"denied", "expired", "superseded", "cancelled"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

logger = logging.getLogger("legation.telemetry")


class Telemetry:
    """Spans of ended calls, on their way to a collector. `async with` it, for as long as the database is open. Belongs to one event loop."""

    def __init__(
        self,
        endpoint: str,
        database: Database,
        sealer: Sealer,
        *,
        server: str | None = None,
        export_limit: float = EXPORT_LIMIT,
    ) -> None:
        """Raises ConfigInvalid where the extra is not installed. `server` names this one among several."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise ConfigInvalid(
                "cannot send traces to `otel_endpoint`: OpenTelemetry is not installed; "
                'install "legation[otel]", or take the setting out'
            ) from None
        named = {"service.name": "legation", "service.version": legation.__version__}
        self._resource = Resource.create(named | ({"service.instance.id": server} if server else {}))
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=export_limit)
        self._database, self._sealer = database, sealer
        self._ended: asyncio.Queue[tuple[str, str]] = asyncio.Queue(MOST_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.sent = 0
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="telemetry")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        try:
            async with asyncio.timeout(FLUSH_LIMIT):
                await self._ended.join()
        except TimeoutError:
            logger.warning("telemetry: the collector is too slow; some of the last calls were not sent")
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # a try that is under way ends by itself, within its limit

    def ended(self, workspace: str, trace_id: str) -> None:
        """Note that a call is over, whatever became of it: once, after its last step was committed."""
        if self._task is None:
            self._lose(1, "it is not running")
            return
        try:
            self._ended.put_nowait((workspace, trace_id))
        except asyncio.QueueFull:
            self._lose(1, f"{MOST_WAITING} calls wait for the collector already")

    async def _run(self) -> None:
        while True:
            calls = [await self._ended.get()]
            while len(calls) < BATCH and not self._ended.empty():
                calls.append(self._ended.get_nowait())
            try:
                await self._send([span for call in calls if (span := await self._span(*call)) is not None])
            except Exception as error:  # noqa: BLE001 - a task's boundary: the next batch may do better
                self._lose(len(calls), type(error).__name__)
            finally:
                for _ in calls:
                    self._ended.task_done()

    async def _span(self, workspace: str, trace_id: str) -> ReadableSpan | None:
        found = await entries.ended(self._database, self._sealer, workspace, trace_id)
        if found is None or found[0].approval_status == "pending":
            return None
        return span_of(*found, self._resource)

    async def _send(self, spans: list[ReadableSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not spans:
            return
        result = await asyncio.to_thread(self._exporter.export, spans)
        if result is not SpanExportResult.SUCCESS:
            self._lose(len(spans), "the collector did not take them")
            return
        self.sent += len(spans)
        self._failing = False

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        if not self._failing:  # said once for each outage
            self._failing = True
            logger.warning("telemetry: calls are not sent: %s; the trace itself is complete", why)


def span_of(entry: TraceEntry, end_ms: int, resource: Resource | None = None) -> ReadableSpan:
    """Make the span of a call. Its ids follow from the call's own: a call that is sent twice is one span."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

    context = SpanContext(
        trace_id=int(entry.trace_id, 16),
        span_id=int(entry.trace_id[16:], 16) or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return ReadableSpan(
        name=f"execute_tool {_text(entry.tool)}",
        context=context,
        resource=resource,
        attributes={name: _sendable(value) for name, value in otel_attributes(entry).items()},
        kind=SpanKind.INTERNAL,
        status=_status(entry),
        start_time=_nanoseconds(entry.timestamp),
        end_time=end_ms * 1_000_000,
        instrumentation_scope=InstrumentationScope("legation", legation.__version__),
    )


def _status(entry: TraceEntry) -> Status:
    """Make it an error where the call was refused or failed; the words say which, and nothing that was said."""
    from opentelemetry.trace import Status, StatusCode

    why = None
    if entry.policy == "deny":
        why = f"refused by {entry.policy_rule}"
    elif (
        entry.policy != "allow" and entry.approval_status in _REFUSED
    ):  # `allow`: the policy changed meanwhile
        why = entry.approval_status
    elif entry.error is not None or (entry.status_code or 0) >= 400:
        why = f"failed with {entry.status_code}"
    elif entry.reason == "outcome-unknown":
        why = entry.reason
    return Status(StatusCode.UNSET) if why is None else Status(StatusCode.ERROR, why)


def _nanoseconds(timestamp: str) -> int:
    since = datetime.fromisoformat(timestamp) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def _sendable(value: Attribute) -> Attribute:
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    # protobuf has no lone surrogates; one of them would cost the whole batch.
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode()
