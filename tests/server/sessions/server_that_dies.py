"""`legation` that is killed when a function is called. argv: `module:Class.function` or `module:function`, the number of the
call, and the rest."""

import importlib
import os
import signal
import sys
from typing import Any

from legation.cli.main import main


def die_at(where: str, number: int) -> None:
    module, _, path = where.partition(":")
    owner, _, name = path.rpartition(".")
    holder = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    real, calls = getattr(holder, name), iter(range(1, number + 1))

    def dying(*args: Any, **kwargs: Any) -> Any:
        if next(calls, number) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(holder, name, dying)


if __name__ == "__main__":
    where, number = sys.argv[1:3]
    del sys.argv[1:3]
    die_at(where, int(number))
    main()
