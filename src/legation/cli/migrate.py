"""`legation migrate`: the database's schema."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from legation.cli.command import LocalFlags, say, settings_of

if TYPE_CHECKING:
    from legation.settings import Settings


def migrate(
    *,
    check: Annotated[
        bool, Parameter(negative="", help="Change nothing; the exit code is 1 if there is something to do.")
    ] = False,
    settings: LocalFlags | None = None,
) -> int:
    """Bring the database's schema up to this release.

    For Postgres, before servers of a new release start. A database in the data folder is migrated by whatever opens it.
    """
    return asyncio.run(_migrate(settings_of(settings), check=check))


async def _migrate(settings: Settings, *, check: bool) -> int:
    from legation.clock import SystemClock
    from legation.server.installation import open_database, prepare_folder
    from legation.store.database import migrations

    prepare_folder(settings.data_dir)
    async with open_database(settings, SystemClock()) as database:
        version = await database.version()
        missing = migrations.chain()[version:]
        if check:
            say(f"schema {version}, {len(missing)} migration(s) to apply")
            return 1 if missing else 0
        for migration in await database.migrate():
            say(f"applied {migration}")
        say(f"schema {migrations.newest()}: up to date")
    return 0
