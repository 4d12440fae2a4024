"""The writer thread alone, with a store that fails where a test says so."""

import threading
from collections.abc import Callable, Sequence
from typing import cast

from legation.errors import StorageFailed
from legation.store.codec import Append, Backend, Op, SetState
from legation.store.log import CLOSE_TRIES, GROUP_BYTES, Writer
from legation.wire.events import Event

BOUND = 20.0  # seconds until a word of the writer that does not come is a failure


class Store:
    """Commits one by one, as files do: what came before a failure stays."""

    def __init__(self, fails: Callable[[Op], Exception | None]) -> None:
        self.fails = fails
        self.stored: list[Op] = []
        self.groups: list[Sequence[Op]] = []
        self.go = threading.Event()

    def commit(self, ops: Sequence[Op]) -> None:
        assert self.go.wait(BOUND)
        self.groups.append(ops)
        for op in ops:
            error = self.fails(op)
            if error:
                raise error
            self.stored.append(op)


class Words:
    def __init__(self) -> None:
        self.said: list[tuple[str, Op]] = []
        self._news = threading.Condition()

    def _note(self, word: str, ops: Sequence[Op]) -> None:
        with self._news:
            self.said += [(word, op) for op in ops]
            self._news.notify_all()

    def settled(self, ops: Sequence[Op], error: StorageFailed | None = None) -> None:
        self._note("refused" if error else "committed", ops)

    def postponed(self, ops: Sequence[Op], _error: StorageFailed) -> None:
        self._note("postponed", ops)

    def until(self, word: str, op: Op) -> None:
        with self._news:
            assert self._news.wait_for(lambda: (word, op) in self.said, BOUND), self.said


def tell(owner: Callable[..., None], *words: object) -> None:
    """In the writer's own thread: the list has a lock."""
    owner(*words)


def append(stream: str) -> Append:
    return Append(stream, [Event(1, 0, "x", b"1")])


def test_a_strict_op_is_not_refused_for_what_fails_behind_it() -> None:
    """It would be in the store, and its stream would go on as if it were not."""
    full = True
    store, words = Store(lambda op: StorageFailed("cannot") if full and op.stream == "b" else None), Words()
    writer = Writer(cast(Backend, store), words, tell)
    close, behind = SetState("a", "closed"), append("b")
    for op in (append("c"), close, behind):  # the first is held, so that the rest is one group
        writer.queue.put(op)
    store.go.set()
    words.until("committed", close)
    words.until("postponed", behind)
    full = False
    words.until("committed", behind)
    writer.close()
    assert ("refused", close) not in words.said


def test_a_strict_op_behind_what_fails_is_refused_and_not_stored() -> None:
    full = True
    store, words = Store(lambda op: StorageFailed("cannot") if full and op.stream == "b" else None), Words()
    writer = Writer(cast(Backend, store), words, tell)
    before, close = append("b"), SetState("b", "closed")
    writer.queue.put(before)
    writer.queue.put(close)
    store.go.set()
    words.until("refused", close)
    full = False
    words.until("committed", before)
    writer.close()
    assert close not in store.stored


def test_an_error_that_nobody_foresaw_does_not_end_the_writer() -> None:
    faults: list[Exception] = [MemoryError()]
    store, words = Store(lambda _: faults.pop() if faults else None), Words()
    store.go.set()
    writer = Writer(cast(Backend, store), words, tell)
    op = append("a")
    writer.queue.put(op)
    words.until("postponed", op)
    words.until("committed", op)
    writer.close()


def test_what_a_closing_writer_cannot_save_is_refused_after_a_few_tries() -> None:
    naps: list[float] = []
    store, words = Store(lambda _: StorageFailed("cannot")), Words()
    store.go.set()
    writer = Writer(cast(Backend, store), words, tell, sleep=naps.append)
    op = append("a")
    writer.queue.put(op)
    words.until("postponed", op)
    writer.close()
    assert ("refused", op) in words.said
    assert len(naps) == CLOSE_TRIES


def test_what_is_long_is_a_commit_of_its_own_and_nothing_overtakes_it() -> None:
    """Everybody in a commit waits for all of it: five megabytes were one, with every neighbour's event in it."""
    store, words = Store(lambda _: None), Words()
    writer = Writer(cast(Backend, store), words, tell)

    def of(stream: str, size: int) -> Append:
        return Append(stream, [Event(1, 0, "x", b"1")], size)

    long = [of("long", 2 * GROUP_BYTES) for _ in range(5)]
    short = [[of("quiet", 100), of("other", 100)] for _ in long]
    writer.queue.put(append("first"))
    given = [op for each, two in zip(long, short, strict=True) for op in (each, *two)]
    for op in given:
        writer.queue.put(op)
    store.go.set()
    words.until("committed", given[-1])
    writer.close()
    assert store.stored[1:] == given
    assert [group for group in store.groups if set(group) & set(long)] == [[each] for each in long]
    assert [group for group in store.groups if set(group) & {each[0] for each in short}] == short
