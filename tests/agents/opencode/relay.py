"""OpenCode behind a relay: SIGUSR1 breaks its event streams and lets no new one through, SIGUSR2 lets them through.

Started like the program itself, with its path before its arguments; writes its pid to the file that RELAY_PID names,
and makes one with the suffix .cut when it has cut.
"""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path


async def main() -> None:
    child = await asyncio.create_subprocess_exec(*sys.argv[1:], stdout=asyncio.subprocess.PIPE)
    assert child.stdout
    while not (found := re.search(rb"listening on http://([\d.]+):(\d+)", await child.stdout.readline())):
        pass
    host, port = found[1].decode(), int(found[2])
    streams: set[asyncio.StreamWriter] = set()
    open_to_all = asyncio.Event()
    open_to_all.set()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(65536):
                if writer is not client and data.startswith(b"GET /global/event"):
                    await open_to_all.wait()
                    streams.add(client)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            streams.discard(client)
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(pump(reader, back, writer), pump(there, writer, writer))

    def cut() -> None:
        open_to_all.clear()
        for each in streams:
            each.transport.abort()
        Path(os.environ["RELAY_PID"]).with_suffix(".cut").touch()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, cut)
    loop.add_signal_handler(signal.SIGUSR2, open_to_all.set)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    Path(os.environ["RELAY_PID"]).write_text(str(os.getpid()))
    sys.stdout.write(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await child.wait()


asyncio.run(main())
