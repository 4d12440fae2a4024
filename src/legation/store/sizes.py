"""Sizes of what is kept, by kind, and how they grew: a sample an hour in a small file of the data folder.

Whoever asks gets the last sample: to look at every table and folder takes as long as there is much of it, and is done by
nobody who waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from legation.store import files
from legation.store.datafolder import BLOBS, COPIES, DISCARDED, LOGS, REPLACED, SESSIONS, SIZES, WORK

SAMPLE_INTERVAL: Final = 3600.0  # seconds between two samples
WEEK_MS: Final = 7 * 86_400_000
MOST_SAMPLES: Final = 7 * 24 + 2  # a week of them
LEAST_SPAN_MS: Final = 12 * 3_600_000  # of samples that say how fast it goes
_PAUSE_AFTER: Final = 200  # entries of a folder, then others have their turn
_PAUSE: Final = 0.002  # seconds

# Tables by kind; the others are the database's own: who may do what, who did what.
TABLES: Final = {
    "trace_step": "traces", "trace_head": "traces", "approval": "traces",
    "trace_content": "content", "content_key": "content", "content_page": "content", "content_stream": "content",
    "run": "runs", "run_template": "runs", "run_attempt": "runs", "run_resource": "runs", "run_event": "runs",
    "run_pack": "runs",
    "run_output": "runs", "run_output_failure": "runs", "cleanup_attempt": "runs", "usage_ledger": "runs",
}  # fmt: skip
_FOLDERS: Final = {
    "blobs": (BLOBS,),
    "work": (WORK, DISCARDED),
    "agents": ("agents",),
    "exec": (SESSIONS,),
    "logs": (LOGS,),
}
KINDS: Final = {
    "sessions": "the event log of sessions",
    "traces": "steps of the trace, and approvals",
    "content": "what was said in them, and in runs, sealed",
    "runs": "durable runs, and what was reported of them",
    "database": "the rest of the database",
    "blobs": "files, and what runs said that have ended",
    "work": "work folders of sessions",
    "agents": "agents' programs and homes",
    "exec": "what `legation exec` recorded",
    "logs": "logs of the server",
    "backups": "what backups and restores left",
    "free": "free in the databases' files, to be used again",
}


class Sample(msgspec.Struct, frozen=True):
    """Bytes by kind, and those that the disk of the data folder has left, at a time in ms."""

    at: int
    kinds: Mapping[str, int]
    disk_free: int

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


class Growth(NamedTuple):
    """Bytes a day: of what is kept, and of what the disk lost, whoever took it."""

    own: float
    disk: float
    full_in_days: float | None  # at this rate; None: it does not fill


def history(data_dir: Path) -> list[Sample]:
    """Read the samples, the oldest first; none where there are none, or where they cannot be read. Blocks."""
    try:
        return msgspec.json.decode((data_dir / SIZES).read_bytes(), type=list[Sample])
    except (OSError, msgspec.MsgspecError):
        return []


def growth(samples: Iterable[Sample]) -> Growth | None:
    """Tell how fast it went in the last week; None while that is too soon to say."""
    known = sorted(samples, key=lambda sample: sample.at)
    recent = [each for each in known if each.at >= known[-1].at - WEEK_MS]
    if not recent or (span := recent[-1].at - recent[0].at) < LEAST_SPAN_MS:
        return None
    first, last, days = recent[0], recent[-1], span / 86_400_000
    disk = (first.disk_free - last.disk_free) / days
    return Growth((last.total - first.total) / days, disk, last.disk_free / disk if disk > 0 else None)


def folder_sizes(data_dir: Path, stop: threading.Event) -> dict[str, int]:
    """Return the bytes of what is in folders of its own, by kind. Blocks, with pauses."""
    found = {kind: sum(disk_use(data_dir / name, stop) for name in names) for kind, names in _FOLDERS.items()}
    found["backups"] = sum(
        disk_use(each, stop) for each in (data_dir / REPLACED, *data_dir.glob(f"{COPIES}*"))
    )
    return found


def disk_use(folder: Path, stop: threading.Event) -> int:
    """Return the bytes that a folder takes on the disk, with all below it; links are not followed. Blocks, with pauses."""
    size, seen, left = 0, 0, [str(folder)]
    while left and not stop.is_set():
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen % _PAUSE_AFTER == 0:
                        time.sleep(_PAUSE)
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:  # gone meanwhile, or not ours to look into
            continue
    return size


def keep(data_dir: Path, sample: Sample) -> None:
    """Put it behind those of the last week. Blocks."""
    kept = [each for each in history(data_dir) if sample.at - WEEK_MS <= each.at < sample.at]
    data = msgspec.json.encode([*kept, sample][-MOST_SAMPLES:])
    files.write_atomically(data_dir / SIZES, data)
