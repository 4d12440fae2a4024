"""A worker that works until a test kills it, or that kills or freezes itself at one effect of one step.

Its configuration: {"url" or "path", "key", "folder", "name", "machine", "lease", "at": [step, effect, phase], "how": "kill" or "stop"}.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.runs.rig import CountingProvider
from tests.store.database.databases import Either

from legation.clock import SystemClock
from legation.runs.run import Run
from legation.runs.steps import Tools
from legation.runs.worker import Worker, WorkerOptions
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.secrets.sealer import KeyRing, Sealer, make_key
from legation.store.secrets.vault import ContentStore, Vault


async def main(config: dict[str, Any]) -> None:
    at = config.get("at")
    once = Path(config["folder"]) / f"killed-{config['name']}"

    async def on_effect(run: Run, step: str, effect: str, phase: str) -> None:
        if at is not None and [step, effect, phase] == at and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGSTOP if config.get("how") == "stop" else signal.SIGKILL)

    clock = SystemClock()
    sealer = Sealer(KeyRing(make_key(Secret(config["key"], "vault-key"))))
    made: Either
    if "url" in config:
        made = PostgresDatabase(Secret(config["url"], "url"))
    else:
        made = SqliteDatabase(Path(config["path"]))
    async with made as database:
        tools = Tools(
            database,
            clock,
            config["machine"],
            Vault(database, sealer, clock),
            ContentStore(database, sealer, clock),
            {"sandbox": lambda: CountingProvider(Path(config["folder"]) / "things")},
            20,
            on_effect,
        )
        options = WorkerOptions(id=config["name"], lease=float(config["lease"]), poll=0.1)
        worker = Worker(tools, options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        await worker.run()


def work(config: dict[str, Any]) -> None:
    asyncio.run(main(config))
