"""Which agents there are by name, and how each is started."""

import sys

from legation.errors import NotFound

_BUILT_IN: dict[str, tuple[str, ...]] = {
    "rehearsal": (sys.executable, "-m", "legation.agents.rehearsal"),
}


def names() -> tuple[str, ...]:
    return tuple(_BUILT_IN)


def command_of(name: str) -> tuple[str, ...]:
    try:
        return _BUILT_IN[name]
    except KeyError:
        known = ", ".join(_BUILT_IN)
        raise NotFound(
            f"cannot find agent {name!r}; known are: {known}; any other ACP agent runs with --command"
        ) from None
