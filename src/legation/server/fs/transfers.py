"""Uploads and downloads at once: each holds descriptors for as long as its caller likes, so they are counted."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from legation.errors import Unavailable

MOST_TRANSFERS: Final = 64


class Transfers:
    def __init__(self, most: int = MOST_TRANSFERS) -> None:
        self._most = most
        self.running = 0

    def begin(self) -> Transfer:
        if self.running >= self._most:
            raise Unavailable(
                f"cannot transfer more than {self._most} files at once; try again when one is done"
            )
        return Transfer(self)


class Transfer:
    def __init__(self, transfers: Transfers) -> None:
        self._transfers: Transfers | None = transfers
        transfers.running += 1

    def end(self) -> None:
        if self._transfers is not None:
            self._transfers.running -= 1
            self._transfers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()
