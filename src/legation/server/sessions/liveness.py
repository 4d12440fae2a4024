"""How the processes of an agent fare, as its sessions know them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from legation.proc.kernel import Process, process
from legation.server.sessions.record import Record
from legation.wire.api.agents import Liveness


def liveness(records: Sequence[Record], restarts: int) -> Liveness:
    """Of one agent. A server that several sessions share is one process; between its turns an agent may have none."""
    active = [record for record in records if record.status == "active"]
    processes = set(_processes(active))
    exits = [record.details.exit for record in records if record.details.exit and not record.ended]
    return Liveness(
        status="running" if active else "error" if exits else "stopped",
        restart_count=restarts,
        last_error=exits[0].words if exits else None,
        uptime_ms=round(max(each.age for each in processes) * 1000) if processes else None,
        processes=len(processes),
    )


def _processes(active: Sequence[Record]) -> Iterator[Process]:
    for record in active:
        if record.session is not None:
            found = (process(pid) for pid in record.session.agent.processes)
            yield from (each for each in found if each is not None and not each.dead)
