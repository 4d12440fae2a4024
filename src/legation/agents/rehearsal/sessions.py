"""Sessions on disk, so that load, resume and list work in the next process too.

One folder a session: `session.json` (what it is now) and `history.jsonl` (what was said).
A flood is kept as its recipe and told again from it.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from legation.agents.rehearsal.connection import NOT_FOUND, Json, RpcError, encode

if TYPE_CHECKING:
    from legation.agents.rehearsal.turn import Turn

MODES: Mapping[str, str] = {
    "default": "Asks before it changes a file",
    "plan": "Says what it would change, and changes nothing",
    "bypass": "Changes files without asking",
}
MODELS: Mapping[str, str] = {"rehearsal-steady": "Rehearsal steady", "rehearsal-terse": "Rehearsal terse"}


@dataclass(slots=True)
class Record:
    """What is kept of a session besides its history."""

    id: str
    cwd: str
    title: str | None = None
    mode: str = "default"
    model: str = "rehearsal-steady"
    thoughts: bool = True
    prompts: int = 0
    updated_ns: int = 0

    def info(self) -> Json:
        info: dict[str, object] = {
            "sessionId": self.id,
            "cwd": self.cwd,
            "updatedAt": timestamp(self.updated_ns),
        }
        return info if self.title is None else {**info, "title": self.title}

    def modes(self) -> Json:
        available = [
            {"id": name, "name": name.capitalize(), "description": text} for name, text in MODES.items()
        ]
        return {"currentModeId": self.mode, "availableModes": available}

    def options(self, *, boolean: bool) -> list[Json]:
        model: Json = {
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": self.model,
            "options": [{"value": value, "name": name} for value, name in MODELS.items()],
        }
        thoughts: Json = {
            "id": "thoughts",
            "name": "Show thoughts",
            "type": "boolean",
            "currentValue": self.thoughts,
        }
        return [model, thoughts] if boolean else [model]


@dataclass(slots=True)
class Session:
    """An open session: its record, and what lives only as long as this process."""

    record: Record
    store: "SessionStore"
    turn: "Turn | None" = None
    remembered: dict[str, bool] = field(default_factory=dict)  # tool kind -> what "always" said

    @property
    def cwd(self) -> Path:
        return Path(self.record.cwd)

    def keep(self, entry: Json) -> None:
        self.store.append(self.record.id, entry)

    def save(self) -> None:
        self.store.save(self.record)


class SessionStore:
    def __init__(self, root: Path) -> None:
        self._root = root / "sessions"

    def create(self, cwd: Path) -> Session:
        record = Record(id=f"reh-{os.urandom(8).hex()}", cwd=str(cwd))
        (self._root / record.id).mkdir(mode=0o700, parents=True)
        self.save(record)
        return Session(record, self)

    def open(self, session_id: str) -> Session:
        record = self._read(self._root / session_id)
        if record is None:
            raise RpcError(NOT_FOUND, f"cannot find session {session_id}: start one with session/new")
        self._mend(session_id)
        return Session(record, self)

    def records(self) -> list[Record]:
        """Newest first."""
        folders = self._root.iterdir() if self._root.is_dir() else ()
        found = [record for folder in folders if (record := self._read(folder))]
        return sorted(found, key=lambda record: (-record.updated_ns, record.id))

    def save(self, record: Record) -> None:
        folder = self._root / record.id
        if not folder.is_dir():
            return  # deleted while its last turn ended
        record.updated_ns = time.time_ns()
        fresh = folder / "session.json.new"
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(folder / "session.json")

    def append(self, session_id: str, entry: Json) -> None:
        folder = self._root / session_id
        if folder.is_dir():
            with (folder / "history.jsonl").open("ab") as file:
                file.write(encode(entry) + b"\n")

    def history(self, session_id: str) -> Iterator[Json]:
        path = self._root / session_id / "history.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # torn by a crash in mid-write

    def delete(self, session_id: str) -> None:
        folder = self._root / session_id
        if folder.is_dir():
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    def _mend(self, session_id: str) -> None:
        """Ends a torn last line, so that the next entry gets a line of its own."""
        path = self._root / session_id / "history.jsonl"
        if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def _read(self, folder: Path) -> Record | None:
        try:
            return Record(**json.loads((folder / "session.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


def timestamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 10**6:03d}Z"
