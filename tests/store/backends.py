"""The backends under test, by name, for tests and for the programs they kill."""

from pathlib import Path

from legation.store.codec import Backend, MemoryBackend
from legation.store.jsonl import JsonlBackend
from legation.store.sqlite import SqliteBackend

DURABLE = ("jsonl", "sqlite")
ALL = ("memory", *DURABLE)


def make_backend(kind: str, folder: Path) -> Backend:
    if kind == "jsonl":
        return JsonlBackend(folder / "log")
    if kind == "sqlite":
        return SqliteBackend(folder / "log.db")
    return MemoryBackend()
