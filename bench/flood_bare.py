"""The flood through the least code that reads it: a protocol that splits lines, and one msgspec decode each.

No numbers, no log, no subscriber, no limits, no odd lines: what is left is the floor for Python.
"""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.flood import ARGV, LIMIT, place, sample, warm_up
from bench.measure import Sample, Stopwatch, emit
from legation.proc.child import PIPE_SIZE


class Params(msgspec.Struct, gc=False):
    sessionId: str = ""  # noqa: N815  spelt as on the wire: a rename costs time
    update: msgspec.Raw = msgspec.Raw()


class Line(msgspec.Struct, gc=False):
    method: str = ""
    params: Params | None = None


decode = msgspec.json.Decoder(Line).decode


class Splitter(asyncio.Protocol):
    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self.updates = 0
        self.answered = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        end = data.rfind(b"\n")
        if end < 0:
            self._partial.append(data)
            return
        whole = b"".join((*self._partial, data[:end]))
        self._partial = [data[end + 1 :]]
        for text in whole.split(b"\n"):
            if decode(text).params is None:
                self.answered.set()
            else:
                self.updates += 1


async def measure(events: int, size: int, scratch: Path) -> Sample:
    with place(scratch) as (folder, env):
        pipe = subprocess.PIPE
        with subprocess.Popen(  # noqa: ASYNC220
            ARGV, stdin=pipe, stdout=pipe, cwd=folder, env=env, bufsize=0
        ) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            fcntl.fcntl(agent.stdout, fcntl.F_SETPIPE_SZ, PIPE_SIZE)  # as Legation's own pipes are
            loop = asyncio.get_running_loop()
            transport, splitter = await loop.connect_read_pipe(Splitter, agent.stdout)

            async def flood(count: int) -> None:
                assert agent.stdin is not None
                prompt = {"prompt": [{"type": "text", "text": f"{count} {size}"}]}
                request = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt}
                splitter.answered.clear()
                agent.stdin.write(msgspec.json.encode(request) + b"\n")
                async with asyncio.timeout(LIMIT):
                    await splitter.answered.wait()

            await flood(warm_up(size))
            stopwatch = Stopwatch()
            await flood(events)
            spent = stopwatch.stop()
            transport.close()
            agent.stdin.close()
    if splitter.updates != warm_up(size) + events:
        raise RuntimeError(f"the splitter saw {splitter.updates} updates")
    return sample(spent, events, size)


if __name__ == "__main__":
    events, size, scratch = sys.argv[1:]
    emit(asyncio.run(measure(int(events), int(size), Path(scratch))))
