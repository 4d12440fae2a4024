"""Follow a stream while its server is restarted: no event is lost, none comes twice.

Runs without a key: `python examples/follow_a_stream.py`.
"""

import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

from legation.client import Legation, Spawn

with TemporaryDirectory() as folder:
    token = secrets.token_urlsafe(24)
    server = Legation.start(Spawn(data_dir=Path(folder), token=token, log="silent"))
    port = int(server.url.rpartition(":")[2])

    with Legation.connect(server.url, token) as legation, legation.streams.follow("server") as events:
        first = next(events)
        print(first.seq, first.type)

        server.close()  # the stream's connection is gone with it
        with Legation.start(Spawn(data_dir=Path(folder), token=token, port=port, log="silent")):
            for event in events:
                print(event.seq, event.type, event.raw.decode())
                if event.type == "server-started":
                    break
