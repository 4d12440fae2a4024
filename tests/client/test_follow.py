"""The follow machine alone: whatever the connections do, the suffix comes exactly once (INV-C4, INV-C5)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.faulty_server import BYE, END, HELLO, event, notice, tagged

from legation.client.follow import MAX_BROKEN, Follow, ManyStreams, OneStream
from legation.client.request import LONG_ENOUGH, MOST_PAUSE, Reconnects, RequestFailure
from legation.errors import Conflict, InternalError, InvalidParams, NotFound, Unavailable
from legation.wire.events import Event

STREAM = {"content-type": "text/event-stream"}
LOST = RequestFailure(Unavailable("cannot GET x: lost; try again"), passing=True)


@dataclass
class Rig:
    """A machine with a clock that moves by its own pauses."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def reconnects(self, patience: float = 600.0) -> Reconnects:
        return Reconnects(patience, chance=lambda: 1.0, now=lambda: self.now)

    def one(self, after: int = 0, patience: float = 600.0) -> Follow[Event]:
        return Follow(OneStream("s", after), self.reconnects(patience))

    def rest(self, machine: Follow[Event]) -> None:
        self.pauses.append(machine.pause())
        self.now += self.pauses[-1]

    def rest_for_ever(self, machine: Follow[Event]) -> None:
        while True:
            self.rest(machine)


def connect(machine: Follow[Event]) -> int:
    """Open a connection well; the number it asks from."""
    request = machine.request()
    machine.opened("GET x", 200, STREAM, b"")
    after = int(dict(request.query)["after"])
    assert request.headers.get("Last-Event-ID", str(after)) == str(after)
    return after


@st.composite
def faults(draw: st.DrawFn) -> tuple[str, int]:
    kinds = st.sampled_from(["cut", "double", "drop", "early", "garbage", "bye", "503", "refused", "html"])
    return draw(kinds), draw(st.integers(1, 400))


def body(total: int, after: int, fault: str, number: int) -> bytes:
    wanted = list(range(after + 1, total + 1))
    place = 1 + number % max(1, len(wanted) - 1)  # never the first: a connection may begin further on
    if fault == "early":
        wanted = list(range(max(1, after - number % 4), total + 1))
    elif fault == "double":
        wanted[place:place] = wanted[:place][-2:]
    elif fault == "drop" and place < len(wanted) - 1:  # nor the last: nothing behind it would tell
        del wanted[place]
    frames = [event(seq) for seq in wanted]
    if fault == "garbage" and len(wanted) > 1:
        frames[place] = b'data: {"seq":\n\n'
    if fault == "bye":
        return HELLO + b"".join(frames[:place]) + BYE
    whole = HELLO + b"".join(frames) + END
    return whole[: number % len(whole)] if fault == "cut" else whole


def chunks(text: bytes, size: int) -> Iterator[bytes]:
    yield from (text[start : start + size] for start in range(0, len(text), size))


@given(st.integers(0, 12), st.integers(0, 12), st.lists(faults(), max_size=12), st.integers(1, 200))
def test_any_sequence_of_faults_gives_the_exact_suffix_once(
    total: int, after: int, plan: list[tuple[str, int]], size: int
) -> None:
    rig = Rig()
    machine = rig.one(after)
    given_: list[int] = []
    while not machine.ended:
        fault, number = plan.pop(0) if plan else ("none", 1)
        asked = int(dict(machine.request().query)["after"])
        assert asked == (given_[-1] if given_ else after)
        if fault == "refused":
            machine.failed(LOST)
        elif fault == "503":
            machine.opened("GET x", 503, {"content-type": "text/html"}, b"<html>")
        elif fault == "html" and given_:
            machine.opened("GET x", 200, {"content-type": "text/html"}, b"")
        else:
            machine.opened("GET x", 200, STREAM, b"")
            for chunk in chunks(body(total, asked, fault, number), size):
                given_ += [item.seq for item in machine.take(chunk)]
                if machine.hung_up:
                    break
        if not machine.ended:
            rig.rest(machine)
    assert given_ == list(range(after + 1, total + 1))


def test_a_first_number_further_on_is_taken_because_history_was_replaced() -> None:
    machine = Rig().one()
    connect(machine)
    assert [item.seq for item in machine.take(event(5) + event(6))] == [5, 6]
    connect(machine)
    assert [item.seq for item in machine.take(event(9) + event(10))] == [9, 10]


def test_a_jump_within_a_connection_ends_it_and_keeps_what_came_before() -> None:
    machine = Rig().one()
    connect(machine)
    assert [item.seq for item in machine.take(event(1) + event(2) + event(4) + event(5))] == [1, 2]
    assert machine.hung_up
    assert connect(machine) == 2


def test_a_server_that_stands_by_a_gap_is_given_up() -> None:
    rig = Rig()
    machine = rig.one(after=5)
    for _ in range(MAX_BROKEN - 1):
        connect(machine)
        assert machine.take(event(5) + event(7)) == []  # 5 is known, so 6 is missing, and not by replacement
        rig.rest(machine)
    connect(machine)
    with pytest.raises(InternalError, match="event 7 of 's' where 6 was next"):
        machine.take(event(5) + event(7))


def test_after_progress_the_next_connection_is_made_at_once_then_ever_more_slowly() -> None:
    rig = Rig()
    machine = rig.one()
    connect(machine)
    machine.take(b"retry: 1000\n\n" + event(1) + BYE)
    rig.rest(machine)
    for _ in range(8):
        machine.request()
        machine.failed(LOST)
        rig.rest(machine)
    assert rig.pauses == [0, 1, 2, 4, 8, 16, MOST_PAUSE, MOST_PAUSE, MOST_PAUSE]


def test_progress_starts_the_count_anew() -> None:
    rig = Rig()
    machine = rig.one()
    for number in (1, 2):
        for _ in range(3):
            machine.request()
            machine.failed(LOST)
            rig.rest(machine)
        connect(machine)
        machine.take(event(number))
        rig.rest(machine)
    assert rig.pauses == [0, 1, 2, 0, 1, 2, 4, 0]


def test_connections_that_close_at_once_are_not_made_in_a_hot_loop() -> None:
    rig = Rig()
    machine = rig.one()
    for _ in range(5):
        connect(machine)
        machine.take(HELLO + BYE)
        rig.rest(machine)
    assert rig.pauses == [0, 0.02, 0.04, 0.08, 0.16]


def test_a_connection_that_held_long_starts_the_count_anew() -> None:
    rig = Rig()
    machine = rig.one()
    for _ in range(3):
        connect(machine)
        rig.now += LONG_ENOUGH
        machine.take(b": ping\n\n")  # and then the line is cut
        rig.rest(machine)
    assert rig.pauses == [0, 0, 0]


def test_patience_counts_from_the_last_sign_of_the_server() -> None:
    rig = Rig()
    machine = rig.one(patience=10)
    rig.now = 9
    connect(machine)
    machine.take(b": ping\n\n")
    machine.failed(LOST)
    with pytest.raises(Unavailable, match="lost; try again"):
        rig.rest_for_ever(machine)
    assert rig.now == pytest.approx(19)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 302])
def test_what_another_try_cannot_mend_is_raised(status: int) -> None:
    machine = Rig().one()
    machine.request()
    with pytest.raises(Exception, match="cannot GET x"):
        machine.opened("GET x", status, {}, b"")


def test_a_problem_is_raised_as_itself() -> None:
    machine = Rig().one(after=99)
    machine.request()
    body = b'{"code":"legation/conflict","detail":"cannot go on after 99","data":{"head":3}}'
    with pytest.raises(Conflict, match="cannot go on after 99") as caught:
        machine.opened("GET x", 409, {"content-type": "application/problem+json"}, body)
    assert caught.value.data == {"head": 3}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(status: int) -> None:
    rig = Rig()
    machine = rig.one()
    machine.request()
    machine.opened("GET x", status, {"retry-after": "3"}, b"")
    assert machine.hung_up
    rig.rest(machine)
    assert rig.pauses == [3]


def test_what_is_no_stream_is_refused_at_first_and_waited_out_later() -> None:
    rig = Rig()
    machine = rig.one()
    machine.request()
    with pytest.raises(Unavailable, match="not Legation"):
        machine.opened("GET x", 200, {"content-type": "text/html"}, b"")
    connect(machine)
    machine.take(event(1))
    machine.request()
    machine.opened("GET x", 200, {"content-type": "text/html"}, b"")
    assert machine.hung_up
    assert not machine.ended


def test_frames_of_a_later_version_are_passed_over() -> None:
    machine = Rig().one()
    connect(machine)
    assert [item.seq for item in machine.take(notice("news", a="b") + event(1))] == [1]


def test_nothing_behind_the_end_is_read() -> None:
    machine = Rig().one()
    connect(machine)
    assert machine.take(END + event(1)) == []
    assert machine.ended


def many(rig: Rig, after: dict[str, int]) -> Follow[tuple[str, Event]]:
    return Follow(ManyStreams(after), rig.reconnects())


def test_many_streams_each_keep_their_own_numbers() -> None:
    machine = many(Rig(), {"a": 12, "b": 0})
    request = machine.request()
    assert dict(request.query) == {"streams": "a@12,b@0"}
    assert "Last-Event-ID" not in request.headers
    machine.opened("GET x", 200, STREAM, b"")
    items = machine.take(
        tagged("a", 13) + tagged("b", 1) + tagged("a", 13) + tagged("a", 14) + tagged("b", 3)
    )
    assert [(name, item.seq) for name, item in items] == [("a", 13), ("b", 1), ("a", 14)]
    request = machine.request()
    assert dict(request.query) == {"streams": "a@14,b@1"}
    assert request.headers["Last-Event-ID"] == "14.1"


def test_one_of_many_ends_alone_and_the_last_ends_all() -> None:
    machine = many(Rig(), {"a": 1, "b": 2, "c": 3})
    machine.request()
    machine.opened("GET x", 200, STREAM, b"")
    machine.take(notice("end", stream="b"))
    assert not machine.hung_up
    request = machine.request()
    assert dict(request.query) == {"streams": "a@1,c@3"}
    assert request.headers["Last-Event-ID"] == "1.3"
    machine.take(notice("end", stream="a") + notice("end", stream="c"))
    assert machine.ended


def test_names_are_encoded_so_that_any_can_be_followed() -> None:
    request = many(Rig(), {"a,b@c/d": 1}).request()
    assert dict(request.query) == {"streams": "a%2Cb%40c%2Fd@1"}
    assert OneStream("a/b ?#", 0).path == "/v1/streams/a%2Fb%20%3F%23/sse"


def test_a_stream_that_was_not_asked_for_breaks_the_connection() -> None:
    machine = many(Rig(), {"a": 0})
    machine.request()
    machine.opened("GET x", 200, STREAM, b"")
    assert machine.take(tagged("z", 1)) == []
    assert machine.hung_up


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidParams):
        OneStream(name, 0)


def test_following_nothing_or_from_below_zero_is_refused() -> None:
    with pytest.raises(InvalidParams):
        ManyStreams({})
    with pytest.raises(InvalidParams):
        OneStream("s", -1)


def test_not_found_is_not_retried() -> None:
    machine = Rig().one()
    machine.request()
    with pytest.raises(NotFound):
        machine.opened("GET x", 404, {"content-type": "text/html"}, b"<html>")
