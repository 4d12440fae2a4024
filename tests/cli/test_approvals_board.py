"""What `watch` knows and means, without a terminal: the board, its dialog, its keys and its screen."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.client.canned_door import view

from legation.cli.approvals_board import (
    AnswerDialog,
    Board,
    BoardAnswer,
    KeyPress,
    KeyReader,
    ScreenSize,
    cut,
    frame,
    seconds,
    wrapped,
)
from legation.cli.approvals_view import StyledLine
from legation.wire.api.approvals import ApprovalChanged, ApprovalDetail

IDS = ["apr_0", "apr_1", "apr_2", "apr_3"]


def changed(id_: str, status: str = "pending", **more: Any) -> ApprovalChanged:
    given: dict[str, Any] = {
        "id": id_,
        "happened": "decided" if status == "pending" else "resolved",
        "status": status,
        "needs": "person",
        "agent": "claude-1",
        "tool": "Bash",
        "kind": "execute",
        "rule": "p:r",
        "group": "g",
        "trace_id": "t",
        "created_at": 0,
        "expires_at": 270_000,
    }
    return ApprovalChanged(**given | more)


def detail(id_: str, **changes: Any) -> ApprovalDetail:
    return ApprovalDetail(**msgspec.structs.asdict(view(id_, **changes)), recent_traces=[], active_grants=[])


def board_of(*ids: str) -> Board:
    board = Board()
    board.fill([view(id_) for id_ in ids], 0.0)
    return board


def asked(board: Board) -> AnswerDialog:
    """A dialog that asks about the one looked at, all of which was seen."""
    assert board.focus is not None
    board.found(detail(board.focus), 0.0)
    dialog = AnswerDialog(board)
    dialog.saw(3, 3)
    dialog.ask(board.answerable)
    return dialog


@pytest.mark.parametrize(
    ("text", "expected"), [("4m30s", 270), ("1h0m0s", 3600), ("45s", 45), ("0s", 0), ("?", 0), ("", 0)]
)
def test_time_left_is_read_as_go_writes_it(text: str, expected: int) -> None:
    assert seconds(text) == expected


def test_one_that_somebody_else_answers_is_not_replaced_by_the_next() -> None:
    board = board_of("apr_1", "apr_2")
    board.found(detail("apr_1"), 0.0)
    board.apply(changed("apr_1", "approved", resolved_by="user:bob"), 0, 0.0)
    assert (board.focus, board.answerable, list(board.rows)) == ("apr_1", None, ["apr_2"])
    assert board.gone == "apr_1 (Bash of claude-1): approved by user:bob"
    board.move(1)
    assert board.focus == "apr_2"
    board.found(detail("apr_2"), 0.0)
    assert board.answerable is board.rows["apr_2"]


def test_ones_own_answer_is_no_news_however_early_the_stream_tells_it() -> None:
    for early in (True, False):
        board = board_of("apr_1", "apr_2")
        board.begin_answer(["apr_1"])
        if early:
            board.apply(changed("apr_1", "approved", resolved_by="user:me"), 0, 0.0)
        board.end_answer(["apr_1"], ["apr_1"])
        if not early:
            board.apply(changed("apr_1", "approved", resolved_by="user:me"), 0, 0.0)
        assert (board.focus, board.gone, list(board.notices)) == ("apr_2", None, [])


def test_an_answer_that_came_second_says_who_was_first() -> None:
    board = board_of("apr_1", "apr_2")
    board.begin_answer(["apr_1"])
    board.apply(changed("apr_1", "denied", resolved_by="user:bob"), 0, 0.0)
    board.end_answer(["apr_1"], [])
    assert board.gone == "apr_1 (Bash of claude-1): denied by user:bob"
    assert board.answerable is None


def test_one_found_to_be_answered_when_it_is_read_is_gone() -> None:
    board = board_of("apr_1")
    board.found(detail("apr_1", status="expired"), 0.0)
    assert board.gone == "apr_1 (Bash of claude-1): expired"
    board.move(1)
    assert board.focus is None


def test_a_list_mends_what_the_stream_lost() -> None:
    board = board_of("apr_1", "apr_2")
    known = list(board.rows)
    board.apply(changed("apr_3"), 0, 0.0)  # after the list was asked for
    board.apply(changed("apr_2", "denied"), 0, 0.0)
    board.compare(known, [view("apr_2"), view("apr_4")], 0.0)
    assert list(board.rows) == ["apr_3", "apr_4"]
    assert board.gone == "apr_1 (Bash of claude-1): no longer pending"


@pytest.mark.parametrize("key", ["y", "n", "e", "i"])
def test_no_key_answers_what_is_not_asked_about(key: str) -> None:
    board = board_of("apr_1", "apr_2")
    dialog = AnswerDialog(board)
    assert dialog.press(KeyPress(key, key)) is None
    assert not dialog.is_open


def test_every_other_key_than_yes_leaves_arguments_that_were_not_shown_alone() -> None:
    for key in ("n", "escape", "q", "enter", "space"):
        dialog = asked(board_of("apr_1"))
        dialog.saw(10, 4)
        assert dialog.press(KeyPress("y", "y")) is None
        assert "6 lines of its arguments were NOT shown" in dialog.question
        assert dialog.press(KeyPress(key)) is None
        assert not dialog.is_open


happenings = st.lists(
    st.one_of(
        st.tuples(
            st.just("key"), st.sampled_from(["y", "n", "e", "i", "j", "k", "?", "enter", "escape", "space"])
        ),
        st.tuples(st.just("pending"), st.sampled_from(IDS)),
        st.tuples(st.sampled_from(["approved", "denied", "expired"]), st.sampled_from(IDS)),
        st.tuples(st.just("draw"), st.just("")),
        st.tuples(st.just("answered"), st.just("")),
        st.tuples(st.just("refused"), st.just("")),
    ),
    max_size=60,
)


@given(happenings)
def test_an_answer_is_always_about_the_one_that_was_on_the_screen(steps: list[tuple[str, str]]) -> None:
    """INV-A1, INV-A3: whatever comes in, in whatever order."""
    board, now = Board(), 0.0
    dialog = AnswerDialog(board)
    on_screen: str | None = None  # the id whose question was drawn last
    answer: BoardAnswer | None = None
    for what, value in steps:
        if what == "key":
            found = dialog.press(KeyPress(value, value if len(value) == 1 else ""))
            if found is not None:
                assert found.ids[0] == on_screen
                board.begin_answer(found.ids)
                answer, on_screen = found, None
        elif what == "draw":
            if board.focus is not None and board.focus in board.rows and board.gone is None:
                board.found(detail(board.focus, group="g"), now)
            row = board.answerable
            dialog.ask(row) if not dialog.is_open else None
            drawn = frame(
                board, ScreenSize(200, 24), now, question=dialog.question, scroll=0, help_=False, place="x"
            )
            dialog.saw(drawn.arguments, drawn.shown)
            assert len(drawn.lines) == 24
            on_screen = row.id if row is not None else None
            assert on_screen is None or f"{on_screen}" in drawn.lines[-1].text
        elif what in ("answered", "refused"):
            if answer is not None:
                board.end_answer(answer.ids, answer.ids if what == "answered" else ())
                answer = None
            dialog.check()
        else:
            board.apply(changed(value, what), 0, now)
            dialog.check()
        assert board.focus is None or board.gone is not None or board.focus in board.rows


def test_keys_are_read_however_they_are_cut() -> None:
    typed = "jé\x1b[A\x1b[B\x1b[5~ \r\x7f".encode()
    whole = list(KeyReader().feed(typed))
    assert [key.name for key in whole] == ["j", "é", "up", "down", "page-up", "space", "enter", "erase"]
    keys = KeyReader()
    assert [key.name for key in [*keys.feed(typed[:2]), *keys.feed(typed[2:])]] == [key.name for key in whole]


@pytest.mark.parametrize("cut_at", range(1, 18))
def test_no_letter_of_what_is_pasted_is_a_key(cut_at: int) -> None:
    typed, keys = b"\x1b[200~yyy\nny\x1b[201~q", KeyReader()
    found = [*keys.feed(typed[:cut_at]), *keys.feed(typed[cut_at:])]
    assert [key.name for key in found if key.name in ("y", "n")] == []
    assert found[-1].name == "q"


@given(st.text(), st.integers(8, 60))
def test_a_line_fits_and_nothing_of_it_is_lost_where_it_matters(text: str, columns: int) -> None:
    assert sum(map(cell_len, cut(text, columns))) <= columns
    pieces = wrapped(StyledLine(text), columns)
    assert all(sum(map(cell_len, piece.text)) <= columns for piece in pieces)
    first, *others = [piece.text for piece in pieces]
    assert first + "".join(other.removeprefix(" .. ") for other in others) == text
