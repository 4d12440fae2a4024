"""The policies in force: the owner's file or folder, followed as it changes, else the starter `careful`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from legation.approvals.policy.facts import Facts
from legation.approvals.policy.load import load_text
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.shell.lines import prepare
from legation.approvals.policy.starters import starter
from legation.approvals.policy.verdict import Verdict
from legation.approvals.policy.watcher import Watcher
from legation.clock import Clock
from legation.errors import ConfigInvalid
from legation.wire.action import Action

STARTER: Final = "careful"

logger = logging.getLogger("legation.policy")

T = TypeVar("T")

# A decision looks at the disk, which may be slow or far away: never on the loop that serves everybody, and not in the
# threads that others need.
_JUDGES: Final = ThreadPoolExecutor(4, "legation-judge")


async def off_loop(work: Callable[..., T], *args: object) -> T:
    """For what looks at where paths lead."""
    return await asyncio.get_running_loop().run_in_executor(_JUDGES, work, *args)


async def judged_by(policies: PolicySet, action: Action, facts: Facts) -> tuple[Verdict, Facts]:
    """The verdict, and the facts that it was found with: grants are asked with those, without another look."""
    if action.command is not None:  # else there are no lines to read
        facts = await prepare(action, facts)
    seen = facts.once()
    return await off_loop(_judge, policies, action, seen), seen


def _judge(policies: PolicySet, action: Action, seen: Facts) -> Verdict:
    verdict = policies.decide(action, seen)
    if verdict.action in ("supervisor", "human_approval"):  # grants ask for it, and the loop must not look
        if seen.workspace is not None:
            seen.root("$WORKSPACE")
        seen.places(action.paths)
    return verdict


class Policies:
    """Raises ConfigInvalid where the first set is not good: a server without its rules does not start."""

    def __init__(self, path: Path | None) -> None:
        self._changed: list[Callable[[PolicySet], None]] = []
        self.problem: str | None = None  # why the newest edit is not in force
        self.source = str(path) if path else f"starter {STARTER}"
        self._watcher = (
            Watcher(path, on_change=self._on_change, on_problem=self._on_problem) if path else None
        )
        self.current: PolicySet = (
            self._watcher.current if self._watcher else load_text(starter(STARTER).text, STARTER)
        )

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
        self.problem, self.current = None, policies
        logger.warning("policies changed: version %s is in force", policies.version[:12])
        for tell in self._changed:
            tell(policies)

    def _on_problem(self, error: ConfigInvalid) -> None:
        self.problem = error.message
        logger.error("policies stay as they were: %s", error.message)
