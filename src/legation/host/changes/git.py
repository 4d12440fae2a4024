"""Runs git on a work tree without ever reading that work tree's own configuration.

INV-1 No program that a repository names runs: git gets a GIT_DIR of our own, whose configuration we wrote.
      Hooks, fsmonitor, filters, external diffs, textconv, pagers and credential helpers are all named in
      a configuration, and git never sees theirs.
INV-2 Nothing of the repository is written: index and objects are in our folder. The repository's objects are
      lent only to `cat-file`, since writing with them in reach would touch their times.
INV-3 No submodule is entered: git would start a second git in it, with the submodule's own configuration.
      So no index of ours ever holds a submodule.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from legation.host.changes.repository import TEXT_BYTES, Repository, read_regular, trusted_path

# The time of one git command; the longest is to hash a large work tree for the first time.
GIT_SECONDS: Final = 120.0

_CONFIG: Final = """\
[core]
\trepositoryFormatVersion = {version}
\tbare = false
\tfileMode = true
\tquotePath = true
\tlooseCompression = 1
\tfsync = none
\tfsmonitor = false
\tuntrackedCache = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tprotectNTFS = false
\tprotectHFS = false
[protocol]
\tallow = never
[extensions]
{extensions}"""

# Wins over every .gitattributes: bytes are compared as they are, whatever conversion the repository asks for.
_ATTRIBUTES: Final = (
    "* -text -crlf !eol -filter -ident !working-tree-encoding !diff !binary !whitespace !export-subst\n"
)


class GitFailed(Exception):
    """A git command ended with an error or not in time."""


class Git:
    def __init__(self, program: str, repository: Repository, folder: Path) -> None:
        self.objects = folder / "git" / "objects"
        self._program = program
        self._root = repository.root
        self._algorithm = repository.algorithm
        self._folder = folder
        _lay_out(folder, repository)
        self._exclude(repository)

    def run(self, *arguments: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
        return self._run(arguments, self._environment(index), stdin, subprocess.PIPE)

    def run_into(self, file: Path, *arguments: str) -> None:
        with file.open("wb") as output:
            self._run(arguments, self._environment(None), b"", output)

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """The sizes of those blobs that the repository has."""
        form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
        rows = self._lent(("cat-file", "--buffer", form), oids, subprocess.PIPE).splitlines()
        blobs = (row.split() for row in rows if b" blob " in row)
        return {oid.decode(): int(size) for oid, _, size in blobs}

    def borrow(self, oids: list[str]) -> None:
        """Copies blobs out of the repository's objects, those whose content is what their name says."""
        file = self._folder / "borrowed"
        with file.open("wb") as output, suppress(GitFailed):  # a damaged object: those before it are there
            self._lent(("cat-file", "--buffer", "--batch"), oids, output)
        with file.open("rb") as borrowed:
            for content in _batch(borrowed):
                self.write_blob(content)
        file.unlink()

    def has(self, oid: str) -> bool:
        return self._loose(oid).exists()

    def write_blob(self, content: bytes) -> str:
        data = b"blob %d\0" % len(content) + content
        oid = hashlib.new(self._algorithm, data).hexdigest()
        file = self._loose(oid)
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(zlib.compress(data, 1))
        return oid

    def _loose(self, oid: str) -> Path:
        return self.objects / oid[:2] / oid[2:]

    def _lent(self, arguments: tuple[str, ...], oids: Iterable[str], output: int | IO[bytes]) -> bytes:
        lent = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self._folder / "theirs")}
        stdin = "".join(f"{oid}\n" for oid in oids).encode()
        return self._run(arguments, self._environment(None) | lent, stdin, output)

    def _environment(self, index: Path | None) -> dict[str, str]:
        return {
            "PATH": trusted_path(self._root),
            "HOME": str(self._folder / "home"),
            "LC_ALL": "C",
            "GIT_DIR": str(self._folder / "git"),
            "GIT_WORK_TREE": str(self._root),
            "GIT_INDEX_FILE": str(index or self._folder / "none"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
        }

    def _run(
        self, arguments: tuple[str, ...], env: dict[str, str], stdin: bytes, output: int | IO[bytes]
    ) -> bytes:
        try:
            done = subprocess.run(
                [self._program, *arguments],
                cwd=self._root,
                env=env,
                input=stdin,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=GIT_SECONDS,
                start_new_session=True,  # an interrupt from the terminal is not meant for it
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GitFailed(arguments[0]) from error
        return done.stdout or b""

    def _exclude(self, repository: Repository) -> None:
        """What the user ignores everywhere, then what this repository ignores: the later line wins."""
        users = read_regular(self._users_excludes(), TEXT_BYTES, follow=True)
        own = read_regular(repository.exclude, TEXT_BYTES)
        parts = [found[0] for found in (users, own) if found]
        if self._folder.is_relative_to(repository.root):
            parts.append(b"/" + os.fsencode(self._folder.relative_to(repository.root)) + b"/")
        (self._folder / "git" / "info" / "exclude").write_bytes(b"\n".join(parts) + b"\n")

    def _users_excludes(self) -> Path:
        """From the user's own configuration, which agents do not share: their HOME is another."""
        names = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL")
        users = {name: os.environ[name] for name in names if name in os.environ}
        env = {name: value for name, value in self._environment(None).items() if name not in names} | users
        arguments = ("config", "--global", "--no-includes", "--type=path", "--get", "core.excludesFile")
        try:
            return Path(os.fsdecode(self._run(arguments, env, b"", subprocess.PIPE).rstrip(b"\n")))
        except GitFailed:  # not set, which is the usual case
            base = users.get("XDG_CONFIG_HOME") or f"{users.get('HOME', '/nonexistent')}/.config"
            return Path(base) / "git" / "ignore"


def _lay_out(folder: Path, repository: Repository) -> None:
    own = folder / "git"
    for name in ("objects", "refs", "info"):
        (own / name).mkdir(parents=True)
    sha256 = repository.algorithm == "sha256"
    config = _CONFIG.format(version=int(sha256), extensions="\tobjectFormat = sha256\n" if sha256 else "")
    (own / "config").write_text(config)
    (own / "HEAD").write_text("ref: refs/heads/none\n")
    (own / "info" / "attributes").write_text(_ATTRIBUTES)
    # A list of object folders is separated by colons, and their path may hold one; ours does not.
    (folder / "theirs").symlink_to(repository.objects)


def _batch(output: IO[bytes]) -> Iterator[bytes]:
    while header := output.readline():
        *_, kind, size = header.split()
        if kind == b"blob":
            yield output.read(int(size))
            output.read(1)
