"""What is where in the data folder; all of it is its owner's alone. `server.json` is named in `wire/api/server.py`."""

from typing import Final

DATABASE: Final = "legation.db"
EVENTS: Final = "events.db"
KEYS: Final = "keys.json"
PORT: Final = "port"
BLOBS: Final = "blobs"
SESSIONS: Final = "sessions"  # of `legation exec`
LOGS: Final = "logs"
SERVER: Final = "server-id"  # which server this is among those of one database: not part of a backup
