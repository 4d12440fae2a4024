"""The policies in force: the owner's file or folder, followed as it changes, else the starter `careful`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from legation.approvals.policy.load import load_text
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.starters import starter
from legation.approvals.policy.watcher import Watcher
from legation.clock import Clock
from legation.errors import ConfigInvalid

STARTER: Final = "careful"

logger = logging.getLogger("legation.policy")


class Policies:
    """Raises ConfigInvalid where the first set is not good: a server without its rules does not start."""

    def __init__(self, path: Path | None) -> None:
        self._changed: list[Callable[[PolicySet], None]] = []
        self.problem: str | None = None  # why the newest edit is not in force
        self.source = str(path) if path else f"starter {STARTER}"
        self._starter = None if path else load_text(starter(STARTER).text, STARTER)
        self._watcher = (
            Watcher(path, on_change=self._on_change, on_problem=self._on_problem) if path else None
        )

    @property
    def current(self) -> PolicySet:
        if self._watcher is not None:
            return self._watcher.current
        assert self._starter is not None
        return self._starter

    def on_change(self, tell: Callable[[PolicySet], None]) -> None:
        self._changed.append(tell)

    async def follow(self, clock: Clock) -> None:
        """Until it is cancelled."""
        if self._watcher is not None:
            await self._watcher.run(clock)

    def poll(self) -> bool:
        """Look now; whether the set in force is another than before."""
        return self._watcher is not None and self._watcher.poll()

    def _on_change(self, policies: PolicySet) -> None:
        self.problem = None
        logger.warning("policies changed: version %s is in force", policies.version[:12])
        for tell in self._changed:
            tell(policies)

    def _on_problem(self, error: ConfigInvalid) -> None:
        self.problem = error.message
        logger.error("policies stay as they were: %s", error.message)
