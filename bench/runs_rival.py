"""procrastinate's jobs a second, claimed, run and completed by some processes. Run by an interpreter that has it (bench/runs.py).

URL=postgresql://... python runs_rival.py WORKERS CONCURRENCY JOBS
"""

import asyncio
import multiprocessing
import os
import sys
import time
from typing import Any

import procrastinate  # type: ignore[import-not-found]


def make_app() -> Any:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["URL"]))

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    async def nothing() -> None:
        return None

    return app


async def _work(concurrency: int, ready: Any, go: Any) -> None:
    app = make_app()
    async with app.open_async():
        ready.release()
        await asyncio.to_thread(go.wait)
        await app.run_worker_async(
            concurrency=concurrency, wait=False, install_signal_handlers=False, delete_jobs="never"
        )


def work(concurrency: int, ready: Any, go: Any) -> None:
    asyncio.run(_work(concurrency, ready, go))


async def main(workers: int, concurrency: int, jobs: int) -> None:
    app = make_app()
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await app.tasks["nothing"].batch_defer_async(*({} for _ in range(jobs)))
        forks = multiprocessing.get_context("spawn")
        ready, go = forks.Semaphore(0), forks.Event()
        processes = [forks.Process(target=work, args=(concurrency, ready, go)) for _ in range(workers)]
        for each in processes:
            each.start()
        for _ in processes:
            await asyncio.to_thread(ready.acquire)
        began = time.perf_counter()
        go.set()
        for each in processes:
            await asyncio.to_thread(each.join)
        print(jobs / (time.perf_counter() - began))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
