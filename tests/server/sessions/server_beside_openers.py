"""`legation` with threads in its process that open and close files all the time. argv: a file for what was taken from
them, and the rest."""

import atexit
import os
import sys
import threading
from pathlib import Path

from legation.cli.main import main

OPENERS = 2
# Seconds until a thread gives way to another: short, so that they meet the loop in the middle of what it does.
SWITCH = 0.0005


def open_and_close(taken: list[str]) -> None:
    mine = os.open(os.devnull, os.O_RDONLY)
    identity = os.fstat(mine)
    while True:
        opened = os.dup(mine)
        try:
            if not os.path.samestat(os.fstat(opened), identity):
                taken.append(f"{opened} is another file")
                continue  # it is another's by now: not ours to close
            os.close(opened)
        except OSError as error:
            taken.append(f"{opened}: {error.strerror}")


if __name__ == "__main__":
    report, taken = Path(sys.argv.pop(1)), list[str]()
    sys.setswitchinterval(SWITCH)
    for _ in range(OPENERS):
        threading.Thread(target=open_and_close, args=(taken,), daemon=True).start()
    atexit.register(lambda: report.write_text("\n".join(taken)))
    main()
