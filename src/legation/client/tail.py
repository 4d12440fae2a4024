"""The last words of a child: its output is always drained, copied to where it is wanted, and its end kept."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import IO, Final

from legation.secret import Secret

KEPT: Final = 8 * 1024
CHUNK: Final = 64 * 1024
# The pipe's time to give what an ended child wrote; a grandchild may hold it open for ever.
DRAIN_LIMIT: Final = 1.0


class Tail:
    def __init__(self, pipe: IO[bytes], sink: int | None, secret: Secret) -> None:
        """Takes over the pipe and the sink, and closes both when the pipe ends."""
        self._pipe = pipe
        self._sink = sink
        self._secret = secret
        self._kept = b""
        self._thread = threading.Thread(target=self._drain, name="legation-server-log", daemon=True)
        self._thread.start()

    def read(self) -> str:
        """Of a child that ended: all of it that is kept, without the secret."""
        self._thread.join(DRAIN_LIMIT)
        text = self._kept[-KEPT:].decode("utf-8", "replace").strip()
        return text.replace(self._secret.reveal(), repr(self._secret))

    def close(self) -> None:
        self._thread.join(DRAIN_LIMIT)

    def _drain(self) -> None:
        try:
            while chunk := os.read(self._pipe.fileno(), CHUNK):
                self._kept = (self._kept + chunk)[-2 * KEPT :]
                self._copy(chunk)
        finally:
            self._pipe.close()
            if self._sink is not None:
                os.close(self._sink)

    def _copy(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        if self._sink is None:
            return
        with suppress(OSError):  # a full disk must not stop the server
            while view:
                view = view[os.write(self._sink, view) :]
