"""A program that owns processes and never ends by itself: `python -m tests.server.processes.owner_to_kill <folder>`."""

import asyncio
import sys
from pathlib import Path

from legation.clock import SystemClock
from legation.proc import ProcessLauncher, Registry
from legation.server.processes.processes import Processes
from legation.wire.api.processes import NewProcess
from legation.wire.principal import Principal

OPERATOR = Principal(kind="test", id="test", workspace="local", scopes=frozenset({"operate"}), level=2)
SCRIPT = "trap '' HUP TERM; (trap '' HUP; setsid sleep 1000) & sleep 1000"


async def record(principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
    return None


async def main(folder: Path) -> None:
    async def here(_path: str) -> Path:
        return folder

    launcher = ProcessLauncher(registry=Registry(folder / "children"))
    async with Processes(
        launcher=launcher,
        folder=here,
        homes=folder / "homes",
        record=record,
        clock=SystemClock(),
        enabled=True,
    ) as processes:
        for tty in (False, True):
            await processes.start(OPERATOR, NewProcess(command="sh", args=["-c", SCRIPT], tty=tty))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
