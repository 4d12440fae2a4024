"""What holds for the projections of every log there is."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.wire.universal.contract import read, read_message
from tests.wire.universal.logs import call, change, chunk
from tests.wire.universal.logs import log as log_of

from legation.wire.event_types import PermissionAnswered, QuestionAnswered
from legation.wire.events import Event
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.projector import SILENT, Projector, decode_state, encode_state
from legation.wire.universal.shapes import STRIDE, Metadata, SessionFacts, floor
from legation.wire.universal.text import RecalledText

FACTS = SessionFacts("mine", "rehearsal", "native-1", Metadata("rehearsal", "build", None, "default"))
ELSEWHERE = log_of(
    chunk("elsewhere"),
    *(
        entry
        for name in ("c1", "c2")
        for entry in (call(name, name="mcp__a__b"), change(name, status="in_progress"))
    ),
    *(PermissionAnswered(id=name, outcome="denied", by="me") for name in ("apr_1", "apr_2")),
    QuestionAnswered(id="q", outcome="declined", by="me"),
    first=1_000_000,
)
POINTS = 12  # at which a long log is cut
LONG_LOG = 100


def project(log: Sequence[Event], start: Projector | None = None) -> list[bytes]:
    projector = start or Projector(FACTS)
    return [each.encode(True) for event in log for each in projector.feed(event)]


def project_messages(log: Sequence[Event], start: MessageProjector | None = None) -> list[bytes]:
    projector = start or MessageProjector(FACTS)
    return [each.encode(True) for event in log for each in projector.feed(event)]


def events_of(log: Sequence[Event]) -> list[dict[str, Any]]:
    return [read(each) for each in project(log)]


def messages_of(log: Sequence[Event]) -> list[dict[str, Any]]:
    return [read_message(each) for each in project_messages(log)]


def check(log: Sequence[Event]) -> list[dict[str, Any]]:
    found = events_of(log)
    _numbers(log, [event["sequence"] for event in found])
    _numbers(log, [event["id"] for event in messages_of(log)])
    _items(found)
    _turns(found)
    _rows(log, found)
    _source_numbers(log)
    _without_raw(log)
    for cut in range(0, len(log) + 1, max(1, len(log) // POINTS)):
        _cut(log, cut)
    _after_reset(log)
    return found


def text_of(item: dict[str, Any]) -> str:
    return "".join(part.get("text") or part.get("output") or "" for part in item["content"])


def _numbers(log: Sequence[Event], numbers: list[int]) -> None:
    """Dense, but for the jump at a reset; never beyond what the log allows."""
    begins = {floor(event.seq) + 1 for event in log if event.type == "session-reset"}
    before = floor(log[0].seq) if log else 0
    for number in numbers:
        assert number == before + 1 or (number > before and number in begins)
        before = number
    assert not log or before <= STRIDE * log[-1].seq


def _items(found: list[dict[str, Any]]) -> None:
    started: dict[str, dict[str, Any]] = {}
    said: dict[str, str] = {}
    completed: set[str] = set()
    for event in found:
        data = event["data"]
        match event["type"]:
            case "item.started":
                item = data["item"]
                assert item["item_id"] not in started
                assert item["status"] == "in_progress"
                assert item["parent_id"] is None or item["parent_id"] in started
                started[item["item_id"]] = item
                said[item["item_id"]] = ""
            case "item.delta":
                assert data["item_id"] in started.keys() - completed
                assert data["native_item_id"] == started[data["item_id"]]["native_item_id"]
                said[data["item_id"]] += data["delta"]
            case "item.completed":
                item = data["item"]
                first = started[item["item_id"]]
                assert item["item_id"] not in completed
                assert item["status"] in ("completed", "failed")
                same = ("native_item_id", "parent_id", "kind", "role")
                assert [item[key] for key in same] == [first[key] for key in same]
                completed.add(item["item_id"])
                # What comes all at once has no deltas; what streams has all of its text in them.
                told = _paired(said[item["item_id"]]) == _paired(text_of(item))
                assert told or text_of(first) == text_of(item)


def _paired(text: str) -> str:
    """Halves of a character that meet are one, as they are to every reader of JSON."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _turns(found: list[dict[str, Any]]) -> None:
    running: str | None = None
    for event in found:
        if event["type"] == "turn.started":
            assert running is None
            running = event["data"]["turn_id"]
        elif event["type"] == "turn.ended":
            assert running in (None, event["data"]["turn_id"])
            running = None
        elif event["type"] == "session.ended":
            assert running is None


def _rows(log: Sequence[Event], found: list[dict[str, Any]]) -> None:
    """INV-U2 and INV-U4: every event of the log stands in the projection, once."""
    shown = Counter(event["raw"]["seq"] for event in found if event["raw"])
    assert set(shown.values()) <= {1}
    assert {event.seq for event in log if event.type not in SILENT} <= shown.keys()
    types = {event.seq: event.type for event in log}
    assert all(types[event["raw"]["seq"]] == event["raw"]["type"] for event in found if event["raw"])


def _source_numbers(log: Sequence[Event]) -> None:
    projector = Projector(FACTS)
    for event in log:
        assert all(each.source_seq == event.seq for each in projector.feed(event))


def _without_raw(log: Sequence[Event]) -> None:
    projector = Projector(FACTS)
    for event in log:
        for each in projector.feed(event):
            assert read(each.encode()) == {**read(each.encode(True)), "raw": None}


def _cut(log: Sequence[Event], cut: int) -> None:
    """A part gives a part, and a copy goes on as the original does."""
    whole, whole_messages = project(log), project_messages(log)
    projector, messages = Projector(FACTS), MessageProjector(FACTS)
    before, messages_before = project(log[:cut], projector), project_messages(log[:cut], messages)
    assert whole[: len(before)] == before
    assert whole_messages[: len(messages_before)] == messages_before
    copied, copied_messages = projector.copy(), messages.copy()
    # One that goes another way disturbs neither.
    project(ELSEWHERE, projector.copy())
    project_messages(ELSEWHERE, messages.copy())
    assert copied.sequence == projector.sequence
    for one in (projector, copied):
        assert before + project(log[cut:], one) == whole
    for other in (messages, copied_messages):
        assert messages_before + project_messages(log[cut:], other) == whole_messages
    if len(log) <= LONG_LOG or cut % 3 == 0:
        _from_state(log, cut)


def _from_state(log: Sequence[Event], cut: int) -> None:
    """A fold that is made of a checkpoint's bytes goes on as the one that it was made of does: in both schemas, with
    the text that it lacks read again, or without where nobody wants that."""
    before = Projector(FACTS)
    for event in log[:cut]:
        before.feed(event)
    encoded = encode_state(before.state())
    if encoded is None:  # what JSON cannot say: half characters that meet
        return
    restored = restored_from(encoded, log, cut)
    assert restored.state() == before.state()
    messages = MessageProjector(FACTS, restored_from(encoded, log, cut))
    blind = passed_over(log[cut:], restored_from(encoded, log, cut, with_text=False))
    original = MessageProjector(FACTS, before.copy())
    assert project(log[cut:], restored) == project(log[cut:], before)
    assert project_messages(log[cut:], messages) == project_messages(log[cut:], original)
    for other in (restored, messages.items, original.items, blind):
        assert other.state() == before.state()


def restored_from(encoded: bytes, log: Sequence[Event], cut: int, *, with_text: bool = True) -> Projector:
    state = decode_state(encoded)
    assert state is not None
    fold = Projector.restored(FACTS, state, log[cut - 1].seq if cut else 0)
    if with_text and (missing := fold.missing_text) is not None:
        text = RecalledText()
        text.take([event for event in log if missing.after < event.seq <= missing.last])
        fold.fill_text(text)
    return fold


def passed_over(log: Sequence[Event], fold: Projector) -> Projector:
    at = 0
    while at < len(log):
        at += fold.pass_over(log, at)
        if at < len(log):
            fold.feed(log[at])
            fold.drop_text(log[at].seq)
            at += 1
    return fold


def _after_reset(log: Sequence[Event]) -> None:
    """INV-U3: who reads from the last reset sees what one sees who read through it."""
    resets = [place for place, event in enumerate(log) if event.type == "session-reset"]
    if resets:
        for one in (project, project_messages):
            suffix = one(log[resets[-1] :])
            assert suffix == one(log)[-len(suffix) :]


def types(found: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in found]


def only(found: list[dict[str, Any]], type_: str) -> dict[str, Any]:
    (event,) = (each for each in found if each["type"] == type_)
    data: dict[str, Any] = event["data"]
    return data


def completed(found: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    items = [each["data"]["item"] for each in found if each["type"] == "item.completed"]
    return [item for item in items if not kinds or item["kind"] in kinds]
