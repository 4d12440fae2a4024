"""Uploads and downloads at once: each holds descriptors for as long as its caller likes, so they are counted.

INV-T1  Whatever one person does, by whichever of their credentials, most of the places are left to others; and
        whatever an agent does, half of those of its maker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from legation.errors import RateLimited, Unavailable
from legation.wire.principal import Principal

MOST_TRANSFERS: Final = 128
PERSONS_PART: Final = 4  # a quarter is one person's, or one address' that brings a link and no credential
AGENTS_PART: Final = 8
RETRY_AFTER: Final = 1  # seconds: a guess, a transfer takes as long as its caller likes


class Transfers:
    def __init__(self, most: int = MOST_TRANSFERS) -> None:
        self._most = most
        self._of: Counter[str] = Counter()  # by whose they are
        self.running = 0

    def begin(self, caller: Principal) -> Transfer:
        shares = {f"person {caller.user or caller.id}": self._most // PERSONS_PART}
        if caller.agent is not None:
            shares[f"agent {caller.id}"] = self._most // AGENTS_PART
        return self._begin(shares)

    def begin_for_address(self, address: str) -> Transfer:
        return self._begin({f"address {address}": self._most // PERSONS_PART})

    def _begin(self, shares: Mapping[str, int]) -> Transfer:
        for who, share in shares.items():
            if self._of[who] >= share:
                # Their own doing, and nothing for the server's log: so not as below.
                raise RateLimited(
                    f"cannot transfer more than {share} files at once for one caller; try again when one is done",
                    {"retryAfter": RETRY_AFTER},
                )
        if self.running >= self._most:
            raise Unavailable(
                f"cannot transfer more than {self._most} files at once; try again when one is done"
            )
        return Transfer(self, tuple(shares))

    def count(self, whose: tuple[str, ...], by: int) -> None:
        self.running += by
        for who in whose:
            self._of[who] += by
            if not self._of[who]:
                del self._of[who]


class Transfer:
    def __init__(self, transfers: Transfers, whose: tuple[str, ...]) -> None:
        self._transfers: Transfers | None = transfers
        self._whose = whose
        transfers.count(whose, 1)

    def end(self) -> None:
        if self._transfers is not None:
            self._transfers.count(self._whose, -1)
            self._transfers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()
