"""Runs git on a work tree without ever reading that work tree's own configuration.

INV-1 No program that a repository names runs: git gets a GIT_DIR of our own, whose configuration we wrote.
      Hooks, fsmonitor, filters, external diffs, textconv, pagers and credential helpers are all named in
      a configuration, and git never sees theirs.
INV-2 Nothing of the repository is written: index and objects are in our folder. The repository's objects are
      lent only to `cat-file`, since writing with them in reach would touch their times.
INV-3 No submodule is entered: git would start a second git in it, with the submodule's own configuration.
      So no index of ours ever holds a submodule.

The repository is found by looking, without asking git: that would read the repository's configuration, which an agent can
write, and would refuse a folder of another user. Everything is read as plain data: bounded, regular files only, no last
link followed.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

# What changed in a folder, as values and as a patch that `git apply` takes.

Status = Literal["added", "modified", "deleted"]

LINK_MODE: Final = 0o120000

# difflib is quadratic at its worst and cannot be interrupted: longer files are shown as replaced as a whole.
COMPARED_LINES: Final = 10_000
TOLD_NOTES: Final = 5
OURS: Final = "not looked into: Legation's own files"

_PLAIN: Final = {byte: chr(byte) for byte in range(ord(" "), 127)}
_ESCAPES: Final = {
    byte: f"\\{letter}" for byte, letter in zip(b'\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """Change of one file: `path` relative to the folder, bytes that are not UTF-8 as `\\xNN`; `binary`: its content is
    not in the diff (not UTF-8 text, too large, or unreadable)."""

    path: str
    added: int
    removed: int
    status: Status
    binary: bool


@dataclass(frozen=True, slots=True)
class FolderChanges:
    """Changes of a folder. `diff` holds the text files only, so that `git apply` always takes it; `files` names every
    one; `incomplete` says what was not looked at, or could not be shown."""

    diff: str
    files: tuple[FileChange, ...]
    incomplete: str | None


class Side(NamedTuple):
    """A file on one side of a comparison; its mode is git's. `content` is None for what was too large, unreadable or
    Legation's own; `mark` still tells whether it changed."""

    mode: int
    content: bytes | None
    mark: tuple[int, int, int, int]


def told(notes: set[str]) -> str | None:
    """Join what was left out into one line of a bounded length."""
    first, more = sorted(notes)[:TOLD_NOTES], len(notes) - TOLD_NOTES
    return "; ".join(first + ([f"and {more} more"] if more > 0 else [])) or None


def shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def as_text(content: bytes | None) -> str | None:
    if content is None or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def count_lines(section: bytes) -> tuple[int, int]:
    """The added and removed lines of one file's section of a patch."""
    _, marker, hunks = section.partition(b"\n@@")
    if not marker:
        return 0, 0
    lines = hunks.split(b"\n")
    return sum(line.startswith(b"+") for line in lines), sum(line.startswith(b"-") for line in lines)


def section(path: bytes, before: Side | None, after: Side | None) -> str | None:
    """Return one file's part of the patch, or None when a side is not text."""
    if before and after and (before.mode == LINK_MODE) != (after.mode == LINK_MODE):
        gone, new = section(path, before, None), section(path, None, after)
        return None if gone is None or new is None else gone + new
    old = as_text(before.content) if before else ""
    new = as_text(after.content) if after else ""
    if old is None or new is None:
        return None
    hunks = _hunks(_lines(old), _lines(new))
    names = [
        f"--- {_named(b'a/' + path)}\n" if before else "--- /dev/null\n",
        f"+++ {_named(b'b/' + path)}\n" if after else "+++ /dev/null\n",
    ]
    return "".join([*_head(path, before, after), *(names if hunks else ()), *hunks])


def _head(path: bytes, before: Side | None, after: Side | None) -> Iterator[str]:
    yield f"diff --git {_quoted(b'a/' + path)} {_quoted(b'b/' + path)}\n"
    if before and after and before.mode != after.mode:
        yield f"old mode {before.mode:o}\nnew mode {after.mode:o}\n"
    elif after and not before:
        yield f"new file mode {after.mode:o}\n"
    elif before and not after:
        yield f"deleted file mode {before.mode:o}\n"


def _hunks(old: list[str], new: list[str]) -> list[str]:
    if len(old) + len(new) > COMPARED_LINES and old != new:
        whole = f"@@ -{min(1, len(old))},{len(old)} +{min(1, len(new))},{len(new)} @@\n"
        lines = [whole, *("-" + line for line in old), *("+" + line for line in new)]
    else:
        lines = list(difflib.unified_diff(old, new))[2:]
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _lines(text: str) -> list[str]:
    """Lines as git has them: only a line feed ends one."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


def _named(path: bytes) -> str:
    name = _quoted(path)
    return name + "\t" if " " in name and not name.startswith('"') else name


def _quoted(path: bytes) -> str:
    """A path as git writes it: in C quotes where a reader could be misled."""
    text = as_text(path)
    if text is not None and not any(char < " " or char in '"\\\x7f' for char in text):
        return text
    escaped = _PLAIN | _ESCAPES
    return '"' + "".join(escaped.get(byte, f"\\{byte:03o}") for byte in path) + '"'


Algorithm = Literal["sha1", "sha256"]

# The time of one git command; the longest is to hash a large work tree for the first time.
GIT_SECONDS: Final = 120.0
# Of a file of the repository's that is read whole; an index of this size has some five million entries.
INDEX_BYTES: Final = 512 * 1024 * 1024
TEXT_BYTES: Final = 1024 * 1024

_PREFIX: Final = "legation-changes-"
_LOCK: Final = "owner"
_SHA256: Final = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256\b", re.IGNORECASE | re.MULTILINE)
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


@dataclass(frozen=True, slots=True)
class Repository:
    """`root` is the top of the work tree."""

    root: Path
    index: Path
    objects: Path
    exclude: Path
    algorithm: Algorithm

    @classmethod
    def around(cls, folder: Path) -> Repository | None:
        root = next((each for each in (folder, *folder.parents) if os.path.lexists(each / ".git")), None)
        if root is None:
            return None
        own: Path | None = root / ".git"
        if not (root / ".git").is_dir():  # where it points in a linked work tree or a submodule
            own = _named_folder(root / ".git", root, b"gitdir:")
        if own is None or not (own / "HEAD").is_file():
            return None
        shared = _named_folder(own / "commondir", own) or own
        if not (shared / "objects").is_dir() or not (shared / "refs").is_dir():
            return None
        config = read_regular(shared / "config", TEXT_BYTES)
        algorithm: Algorithm = "sha256" if config and _SHA256.search(config[0]) else "sha1"
        return cls(root, own / "index", shared / "objects", shared / "info" / "exclude", algorithm)


def read_regular(path: Path, limit: int, *, follow: bool = False) -> tuple[bytes, os.stat_result] | None:
    """A regular file's content and status; None for what is missing, special, a link, or over the limit."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            return file.read(limit), status
    except OSError:
        return None


def _named_folder(file: Path, base: Path, label: bytes = b"") -> Path | None:
    found = read_regular(file, TEXT_BYTES)
    if found is None or not found[0].startswith(label) or b"\0" in found[0]:
        return None
    folder = base / os.fsdecode(found[0][len(label) :].strip())
    return folder if folder.is_dir() else None


def trusted_path(root: Path) -> str:
    """Return PATH without relative entries and what is inside the work tree, where an agent could have put a git."""
    entries = map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
    outside = [each for each in entries if each.is_absolute() and not each.resolve().is_relative_to(root)]
    return os.pathsep.join(map(str, outside))


class Scratch:
    """Temporary folder that does not outlive its process for long: the owner holds a lock on a file in it, which the
    kernel gives up when the owner dies, and whoever makes the next folder removes those whose lock is free."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        unnamed = self.path / f"{_LOCK}-new"
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)  # locked before it has its name, so that no sweep finds it free
        # Also when nobody closes it: a cancelled `take` has a thread that still ends, and an owner no more.
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its owner lives, it has no lock, or it has gone
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


class GitFailed(Exception):
    """A git command ended with an error or not in time."""


class Git:
    def __init__(self, program: str, repository: Repository, folder: Path) -> None:
        self.no_oid = "0" * 2 * hashlib.new(repository.algorithm).digest_size
        self._program = program
        self._repository = repository
        self._folder = folder
        self._objects = folder / "git" / "objects"
        _lay_out(folder, repository)
        self._exclude(repository)

    def run(
        self,
        *arguments: str,
        index: Path | None = None,
        stdin: bytes = b"",
        output: int | IO[bytes] = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            done = subprocess.run(
                [self._program, *arguments],
                cwd=self._repository.root,
                env=self._environment(index) if env is None else env,
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

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """The sizes of those blobs that the repository has."""
        form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
        blobs = (row.split() for row in self._lent(form, oids).splitlines() if b" blob " in row)
        return {oid.decode(): int(size) for oid, _, size in blobs}

    def borrow(self, oids: list[str]) -> None:
        """Copies blobs out of the repository's objects, those whose content is what their name says."""
        file = self._folder / "borrowed"
        with file.open("wb") as output, suppress(GitFailed):  # a damaged object: those before it are there
            self._lent("--batch", oids, output)
        with file.open("rb") as borrowed:
            for content in _batch(borrowed):
                self.write_blob(content)
        file.unlink()

    def has(self, oid: str) -> bool:
        return self._loose(oid).exists()

    def write_blob(self, content: bytes) -> str:
        data = b"blob %d\0" % len(content) + content
        oid = hashlib.new(self._repository.algorithm, data).hexdigest()
        file = self._loose(oid)
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(zlib.compress(data, 1))
        return oid

    def _loose(self, oid: str) -> Path:
        return self._objects / oid[:2] / oid[2:]

    def _lent(self, form: str, oids: Iterable[str], output: int | IO[bytes] = subprocess.PIPE) -> bytes:
        lent = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self._folder / "theirs")}
        stdin = "".join(f"{oid}\n" for oid in oids).encode()
        return self.run(
            "cat-file", "--buffer", form, stdin=stdin, output=output, env=self._environment() | lent
        )

    def _environment(self, index: Path | None = None) -> dict[str, str]:
        return {
            "PATH": trusted_path(self._repository.root),
            "HOME": str(self._folder / "home"),
            "LC_ALL": "C",
            "GIT_DIR": str(self._folder / "git"),
            "GIT_WORK_TREE": str(self._repository.root),
            "GIT_INDEX_FILE": str(index or self._folder / "none"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
        }

    def _exclude(self, repository: Repository) -> None:
        """Write what the user ignores everywhere, then what this repository ignores: the later line wins."""
        users = read_regular(self._users_excludes(), TEXT_BYTES, follow=True)
        own = read_regular(repository.exclude, TEXT_BYTES)
        parts = [found[0] for found in (users, own) if found]
        if self._folder.is_relative_to(repository.root):
            parts.append(b"/" + os.fsencode(self._folder.relative_to(repository.root)) + b"/")
        (self._folder / "git" / "info" / "exclude").write_bytes(b"\n".join(parts) + b"\n")

    def _users_excludes(self) -> Path:
        """Find it by the user's own configuration, which agents do not share: their HOME is another."""
        names = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL")
        users = {name: os.environ[name] for name in names if name in os.environ}
        env = {name: value for name, value in self._environment().items() if name not in names} | users
        arguments = ("config", "--global", "--no-includes", "--type=path", "--get", "core.excludesFile")
        try:
            return Path(os.fsdecode(self.run(*arguments, env=env).rstrip(b"\n")))
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
