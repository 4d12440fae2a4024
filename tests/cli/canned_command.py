"""The command, pointed at a canned server."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from tests.cli.command import legation
from tests.client.canned_door import TOKEN, CannedServer

Command = Callable[..., CompletedProcess[str]]


def command(home: Path, server: CannedServer) -> Command:
    def run(*argv: str, stdin: str = "") -> CompletedProcess[str]:
        return legation(home, *argv, stdin=stdin, LEGATION_URL=server.url, LEGATION_TOKEN=TOKEN)

    return run
