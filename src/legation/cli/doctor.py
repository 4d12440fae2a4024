"""`legation doctor`: what works here, what does not, and the command that helps."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import Parameter

import legation
from legation.cli.command import (
    Json,
    SettingsFlags,
    Style,
    byte_size,
    connect_to,
    line,
    say_json,
    say_verdict,
    settings_of,
)
from legation.cli.folders import Folders
from legation.errors import ConfigInvalid, LegationError
from legation.settings import FIELDS, Settings
from legation.store.datafolder import COPIES, KEYS, REPLACED, cut_off, left_beside
from legation.store.files import owner_alive
from legation.wire.api.server import OWNER_LOCK

Verdict = Literal["ok", "limited", "broken"]
PROBE_LIMIT = 10.0  # seconds a program has to answer a probe: its time
_STYLES: dict[Verdict, Style] = {"ok": "green", "limited": "yellow", "broken": "red"}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    verdict: Verdict
    about: str
    says: str
    next: str = ""  # the next command, where there is one


def doctor(
    *,
    all: Annotated[bool, Parameter(negative="", help="And every setting, with where it comes from.")] = False,  # noqa: A002
    json: Json = False,
    settings: SettingsFlags | None = None,
) -> int:
    """Say what works here and what to do next. The exit code is 1 if something needed is broken."""
    broken = False
    for finding in _examine(settings, every_setting=all):
        broken |= finding.verdict == "broken"
        if json:
            say_json(finding)
        else:
            text = f"{finding.about}: {finding.says}"
            say_verdict(finding.verdict, _STYLES[finding.verdict], text, finding.next)
    return 1 if broken else 0


def _examine(flags: SettingsFlags | None, *, every_setting: bool) -> Iterator[DoctorFinding]:
    yield DoctorFinding("ok", "legation", f"{legation.__version__} on Python {platform.python_version()}")
    try:
        settings = settings_of(flags)
    except ConfigInvalid as error:
        yield DoctorFinding("broken", "settings", error.message)
        return
    for check in _CHECKS:
        try:
            yield check(settings)
        except OSError as error:
            says = f"{error.strerror}: {error.filename}"
            yield DoctorFinding("broken", "data folder", says, "legation doctor --data-dir PATH")
    if every_setting:
        for field in FIELDS:
            value, source = _shown(getattr(settings, field.name)), settings.source(field.name)
            yield DoctorFinding("ok", field.name, f"{value} ({source})")
    else:
        chosen = [field.name for field in FIELDS if field.name in settings.sources]
        says = f"{', '.join(chosen)} set, the others as they come" if chosen else "all as they come"
        yield DoctorFinding("ok", "settings", f"{says}; --all shows them")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)  # a secret shows its name


def _data_folder(settings: Settings) -> DoctorFinding:
    folder = settings.data_dir
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError:
        return DoctorFinding(
            "broken", "data folder", f"{existing} is not writable", "legation doctor --data-dir PATH"
        )
    free = shutil.disk_usage(existing).free // 2**20
    if free < 100:
        return DoctorFinding(
            "limited", "data folder", f"{folder}, with only {free} MiB left", "free some space"
        )
    return DoctorFinding("ok", "data folder", f"{folder}, {free} MiB free")


SOON: Final = 30.0  # days to a full disk that are worth a word of warning


def _growth(settings: Settings) -> DoctorFinding:
    """Say when the disk is full at this week's rate, by the samples that a server keeps beside its data."""
    from legation.store.sizes import growth, history

    samples = history(settings.data_dir)
    if not samples:
        return DoctorFinding("ok", "growth", "not known yet; a running server looks every hour")
    kept = f"{byte_size(samples[-1].total)} kept"
    if (rate := growth(samples)) is None:
        return DoctorFinding("ok", "growth", f"{kept}; how fast it grows is known after half a day")
    grows = f"{kept}, {'+' if rate.own >= 0 else '-'}{byte_size(abs(rate.own))} a day this week"
    if rate.full_in_days is None:
        return DoctorFinding("ok", "growth", f"{grows}; the disk does not fill")
    left = f"at this week's rate the disk is full in {_days(rate.full_in_days)}"
    if rate.full_in_days > SOON:
        return DoctorFinding("ok", "growth", f"{grows}; {left}")
    if rate.own * 2 < rate.disk:  # others take most of it
        return DoctorFinding(
            "limited", "growth", f"{grows}; {left}, most of it not by Legation", "free some space"
        )
    return DoctorFinding("limited", "growth", f"{grows}; {left}", "legation prune --older-than 90d --dry-run")


def _days(count: float) -> str:
    if count < 1:
        return "less than a day"
    return f"about {count:.0f} day{'s' if round(count) != 1 else ''}" if count < 1000 else "years"


def _sqlite(_: Settings) -> DoctorFinding:
    version = sqlite3.sqlite_version_info
    if version < (3, 37):
        return DoctorFinding(
            "broken", "sqlite", f"{sqlite3.sqlite_version} is too old; 3.37 is needed", "update Python"
        )
    return DoctorFinding("ok", "sqlite", sqlite3.sqlite_version)


def _git(_: Settings) -> DoctorFinding:
    if shutil.which("git"):
        return DoctorFinding("ok", "git", _first_line("git", "--version"))
    says = "not found; changes are shown by comparing files, within limits"
    return DoctorFinding("limited", "git", says, "install git, on Debian: apt-get install git")


def _bubblewrap(_: Settings) -> DoctorFinding:
    """Run it, not only look for it: some systems have it and forbid it."""
    if not shutil.which("bwrap"):
        says = "not found; agents run without a jail, which is to come"
        return DoctorFinding(
            "limited", "bubblewrap", says, "install it, on Debian: apt-get install bubblewrap"
        )
    probe = _probe("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--", "true")
    works = probe is not None and probe.returncode == 0
    if works:
        works_for = "it works; agents do not run in a jail yet"
        return DoctorFinding("ok", "bubblewrap", f"{_first_line('bwrap', '--version')}: {works_for}")
    says = "found, but the system forbids it; agents run without a jail, which is to come"
    return DoctorFinding("limited", "bubblewrap", says, "allow unprivileged user namespaces")


def _shell_parser(_: Settings) -> DoctorFinding:
    """Run it, not only look for it: it may be of another platform."""
    from legation.approvals.policy.shell.lines import PACKAGE, parse, program

    found = program()
    try:
        works = found is not None and parse(found, b"[[ -f a ]]")
    except (OSError, TimeoutError):
        works = False
    if works:
        return DoctorFinding("ok", "shell lines", f"{found} reads what policies cannot read themselves")
    says = (
        "its parser is missing; lines with here-documents, `[[`, `case` and arrays fit no allow of a policy"
    )
    return DoctorFinding("limited", "shell lines", says, f"pip install {PACKAGE}")


def _subreaper(_: Settings) -> DoctorFinding:
    from legation.proc.tree import become_subreaper

    if become_subreaper():
        return DoctorFinding("ok", "processes", "daemons that agents leave behind are found and ended")
    return DoctorFinding(
        "limited", "processes", "daemons that agents leave behind may escape", "run on Linux 3.4 or later"
    )


def _leftovers(settings: Settings) -> DoctorFinding:
    from legation.proc.registry import listed

    entries = listed(Folders(settings.data_dir).children)
    dead = [entry for entry in entries if entry.state in ("orphaned", "gone")]
    if dead:
        says = (
            f"{len(dead)} agent(s) of a killed Legation are on file; the next start ends what is left of them"
        )
        return DoctorFinding("limited", "agents", says, "legation leaks")
    running = ", ".join(
        f"{entry.name} (pid {entry.pid}, of {entry.owner or 'nobody'})"
        for entry in entries
        if entry.state != "ended"
    )
    return DoctorFinding(
        "ok", "agents", f"running: {running}" if running else "none running, none left behind"
    )


def _old_data(settings: Settings) -> DoctorFinding:
    """Look for what restores and backups left: prompts, answers and keys that may still be in use."""
    folder = settings.data_dir
    if (old := cut_off(folder)) is not None:
        says = f"a restore was cut off, and what was there is in {line(str(old))}"
        return DoctorFinding(
            "broken", "old data", says, "legation restore FILE --replace, or give that its name back"
        )
    broken_off = [] if owner_alive(folder / OWNER_LOCK) else folder.glob(f"{COPIES}*")
    found = [*left_beside(folder), *sorted((folder / REPLACED).glob("*")), *sorted(broken_off)]
    if not found:
        return DoctorFinding("ok", "old data", "none left by a restore or a backup")
    names = ", ".join(line(str(each)) for each in found)
    says = f"a restore or a backup left {names}, with the keys of then; Legation opens it for nobody"
    return DoctorFinding("limited", "old data", says, line(shlex.join(["rm", "-r", *map(str, found)])))


def _server(settings: Settings) -> DoctorFinding:
    if settings.url is None and not owner_alive(settings.data_dir / OWNER_LOCK):
        return DoctorFinding("ok", "server", f"none runs on {settings.data_dir}", "legation up")
    try:
        with connect_to(settings) as server:
            info = server.info()
            server.ready()
    except LegationError as error:
        return DoctorFinding("broken", "server", error.message, "legation status")
    return DoctorFinding("ok", "server", f"{info.url}, pid {info.pid}, ready")


def _keys(settings: Settings) -> DoctorFinding:
    """Look at them, and make none: a doctor changes nothing."""
    path = settings.data_dir / KEYS
    if all((settings.vault_key, settings.token_pepper, settings.cookie_key)):
        return DoctorFinding("ok", "keys", "given as settings")
    if not path.exists():
        return DoctorFinding("ok", "keys", "none yet; the first start makes them")
    from legation.store.secrets.sealer import open_key_file

    try:
        open_key_file(path)
    except LegationError as error:
        return DoctorFinding(
            "broken", "keys", error.message, "legation restore FILE, or put back a copy of it"
        )
    return DoctorFinding("ok", "keys", f"{path}, readable by you alone; keep a copy in another place")


def _database(settings: Settings) -> DoctorFinding:
    if settings.database_url is None:
        return DoctorFinding("ok", "database", "SQLite, in the data folder")
    import asyncio

    from legation.clock import SystemClock
    from legation.server.installation import open_database
    from legation.store.database import migrations

    async def version() -> int:
        async with open_database(settings, SystemClock()) as database:
            return await database.version()

    try:
        found = asyncio.run(version())
    except LegationError as error:
        return DoctorFinding(
            "broken", "database", error.message, "correct LEGATION_DATABASE_URL, or start the database"
        )
    if found != migrations.newest():
        says = f"Postgres, with schema {found} where this Legation needs {migrations.newest()}"
        return DoctorFinding("broken", "database", says, "legation migrate")
    return DoctorFinding("ok", "database", f"Postgres, schema {found}")


_CHECKS: Final[tuple[Callable[[Settings], DoctorFinding], ...]] = (
    _data_folder,
    _growth,
    _sqlite,
    _git,
    _bubblewrap,
    _shell_parser,
    _subreaper,
    _leftovers,
    _old_data,
    _server,
    _keys,
    _database,
)


def _first_line(*argv: str) -> str:
    done = _probe(*argv)
    if done is None:
        return "found, but it does not answer"
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def _probe(*argv: str) -> subprocess.CompletedProcess[str] | None:
    """Run it with a clean environment; None for what cannot be run or does not answer in time."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, capture_output=True, timeout=PROBE_LIMIT, check=False, text=True, errors="replace", env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
