"""The server's log: one JSON object a line, with ids, without secrets.

INV-L1  Nothing is written before it has passed the redactor; what looks like one of our tokens never passes.
INV-L2  Logging never holds up the server: a thread writes, and a reader that stalls costs lines, not requests.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO
from urllib.parse import unquote, urlsplit

import msgspec

from legation.redact import MIN_BYTES, Redactor
from legation.secret import Secret
from legation.setting_values import LogLevel
from legation.settings import Settings
from legation.store.datafolder import make_folder

if TYPE_CHECKING:
    from legation.server.http.app import RequestSummary

QUEUE_LINES: Final = 10_000  # that may wait for a slow disk or terminal
FILE_BYTES: Final = 10 * 1024 * 1024
FILES_KEPT: Final = 5
NAP: Final = 0.02  # seconds that a line may wait for others: the reader's time
END_LIMIT: Final = 0.5  # seconds: the reader's time to take the last lines
_TOKEN: Final = re.compile(r"lgn_[A-Za-z0-9_-]{8,}")
_IDS: Final = ("request_id", "workspace", "principal", "method", "route", "status", "ms", "stream")

access_logger = logging.getLogger("legation.access")


class JsonLogFormatter(logging.Formatter):
    """Write a record as JSON, its ids beside its message: `logger.info("...", extra={"request_id": ...})`."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        members |= {name: vars(record)[name] for name in _IDS if name in vars(record)}
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        text = msgspec.json.encode(members, enc_hook=str).decode()
        return _TOKEN.sub("[redacted:token]", self._redactor.text(text))


class _LineQueue(logging.Handler):
    """Hand records to a thread that writes them. It is woken for the first and takes along what comes within `NAP`: woken for
    each, it would have the server wait for it as often. What is too much is dropped; how much is told with the next that gets through.
    """

    def __init__(self, writer: logging.Handler) -> None:
        super().__init__()
        self._writer = writer
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="legation-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # As it is: the formatter, in the other thread, sees the record itself.
        if self._waiting.qsize() >= QUEUE_LINES:
            self._dropped += 1
            return
        if self._dropped:
            note = f"{self._dropped} line(s) were dropped: the log could not keep up"
            members = {"name": "legation", "levelno": 30, "levelname": "WARNING", "msg": note}
            self._waiting.put(logging.makeLogRecord(members))
            self._dropped = 0
        self._waiting.put(record)

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._ending.wait(NAP)
            self._writer.handle(record)
            for _ in range(self._waiting.qsize()):
                if (record := self._waiting.get()) is None:
                    return
                self._writer.handle(record)

    def stop(self) -> None:
        # With a bound: a reader that stalls must not keep the server from ending. The thread is a daemon.
        self._ending.set()
        self._waiting.put(None)
        self._thread.join(END_LIMIT)


@contextmanager
def logging_to(target: Path | TextIO | int, level: LogLevel, redactor: Redactor) -> Iterator[None]:
    """Write everything that is logged there, until the end of the block."""
    writer = _writer(target)
    writer.setFormatter(JsonLogFormatter(redactor))
    handler, root = _LineQueue(writer), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.stop()
        with suppress(OSError):  # a full disk: what is left of the log is lost, and nothing else
            writer.close()


def _writer(target: Path | TextIO | int) -> logging.Handler:
    if not isinstance(target, Path):
        return _DescriptorWriter(target) if isinstance(target, int) else _StreamWriter(target)
    make_folder(target.parent)
    return _FileWriter(
        target, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8", errors="replace"
    )


class _StreamWriter(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Do nothing: of a reader that went away or a full disk there is nowhere to say so."""


class _DescriptorWriter(logging.Handler):
    """Write straight to the descriptor: a thread that is stuck in a write must hold no lock, of this handler or of
    `sys.stderr`, that the end of the process needs."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def createLock(self) -> None:  # noqa: N802 - logging's own name
        self.lock = None  # only the listener's thread writes

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)  # from Python 3.13 on the inherited one enters the lock, there or not
        return True

    def emit(self, record: logging.LogRecord) -> None:
        view = memoryview(f"{self.format(record)}\n".encode(errors="replace"))
        with suppress(OSError):  # a reader that went away or a full disk: there is nowhere to say so
            while view:
                view = view[os.write(self._fd, view) :]


class _FileWriter(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        """Open it private, also the next one."""
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Do nothing, as above: the server goes on without its log."""


def level_of(settings: Settings) -> LogLevel:
    # A server says what it does unless told otherwise; commands keep to warnings.
    return "info" if settings.source("log_level").startswith("default") else settings.log_level


def secrets_of(settings: Settings) -> Iterator[Secret]:
    """List what of the settings must never be in a log."""
    for value in (
        settings.token,
        settings.vault_key,
        settings.token_pepper,
        settings.cookie_key,
        settings.notify_webhook,
        settings.notify_webhook_secret,
        settings.notify_smtp,
    ):
        if value is not None:
            yield value
    if settings.database_url is not None:
        password = unquote(urlsplit(settings.database_url.reveal()).password or "")
        if len(password.encode()) >= MIN_BYTES:
            yield Secret(password, "database-password")


def log_request(summary: RequestSummary) -> None:
    if not access_logger.isEnabledFor(logging.INFO):
        return
    # Made by hand: `info` would look for the line that it is called from, which no line of the log has.
    record = access_logger.makeRecord(
        access_logger.name,
        logging.INFO,
        "",
        0,
        "%s %s %d",
        (summary.method, summary.route or "-", summary.status),
        None,
        extra={
            "request_id": summary.request_id,
            "principal": summary.principal,
            "workspace": summary.workspace,
            "ms": round(summary.seconds * 1000, 1),
        },
    )
    access_logger.handle(record)
