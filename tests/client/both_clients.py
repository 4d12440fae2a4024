"""The sync and the async client behind one face, so that every scenario runs with both."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import islice
from typing import Any, Protocol

import pytest

from legation.client import AsyncLegation, Legation

TOKEN = "canary-7f3a9c-token"


class Driver(Protocol):
    def call(self, url: str, use: Callable[[Any], Any], **how: Any) -> Any:
        """The answer of one operation."""

    def items(self, url: str, use: Callable[[Any], Any], most: int | None = None, **how: Any) -> list[Any]:
        """What an iteration gives, to its end or to the first `most`."""


class Sync:
    def call(self, url: str, use: Callable[[Any], Any], **how: Any) -> Any:
        with Legation.connect(url, TOKEN, **how) as legation:
            return use(legation)

    def items(self, url: str, use: Callable[[Any], Any], most: int | None = None, **how: Any) -> list[Any]:
        with Legation.connect(url, TOKEN, **how) as legation:
            return list(islice(use(legation), most))


class Async:
    def call(self, url: str, use: Callable[[Any], Any], **how: Any) -> Any:
        async def main() -> Any:
            async with AsyncLegation.connect(url, TOKEN, **how) as legation:
                return await use(legation)

        return asyncio.run(main())

    def items(self, url: str, use: Callable[[Any], Any], most: int | None = None, **how: Any) -> list[Any]:
        async def main() -> list[Any]:
            found: list[Any] = []
            async with (
                AsyncLegation.connect(url, TOKEN, **how) as legation,
                aclosing(aiter_of(use(legation))) as all_,
            ):
                async for item in all_:
                    found.append(item)
                    if len(found) == most:
                        break
            return found

        return asyncio.run(main())


async def aiter_of(iterable: Any) -> Any:
    """An async generator over it, which closes what it can when it is closed."""
    try:
        async for item in iterable:
            yield item
    finally:
        if hasattr(iterable, "close"):
            await iterable.close()


both = pytest.mark.parametrize("driver", [Sync(), Async()], ids=["sync", "async"])
