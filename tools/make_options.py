"""Put the modes and models that installed agents offer into the lock: for whoever changes Legation.

python -m tools.make_options DATA_FOLDER NAME ...
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.options import options_of
from legation.agents.install.lock import Lock, shipped
from tools.make_lock import write


def main(data_dir: str, *names: str) -> None:
    lock = shipped()
    catalogue = Catalogue(Path(data_dir), environ={"PATH": os.environ.get("PATH", os.defpath)})
    for name in names:
        found = asyncio.run(options_of(catalogue, name, again=True))
        if found.source != "asked":
            sys.exit(f"{name}: {found.problem}")
        first, *older = lock.agents[name]
        asked = msgspec.structs.replace(first, modes=found.modes, models=found.models)
        lock = Lock({**lock.agents, name: (asked, *older)})
    write(lock)


if __name__ == "__main__":
    main(*sys.argv[1:])
