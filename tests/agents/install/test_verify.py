"""What was done to an installation afterwards is found, whatever it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.agents.install.local_registry import LocalRegistry, locked, tarball

from legation.agents.install.folder import RECORD, InstallFolder, verify
from legation.agents.install.installer import install
from legation.agents.install.lock import Release, TargetMachine

pytestmark = pytest.mark.heavy  # each has an installation of its own, brought to disk

HERE = TargetMachine("x64", "glibc")
FILES = {"package.json": b"{}", "run": b"#!/bin/sh\n", "lib/a.txt": b"a"}


@pytest.fixture
def folder(registry: LocalRegistry, tmp_path: Path) -> InstallFolder:
    folder = InstallFolder.of(tmp_path, "acme")
    body = tarball(FILES, ("run",))
    registry.serve(release().packages[0], body)
    install(release(), folder, environ=registry.environ, target=HERE)
    return folder


def release() -> Release:
    return Release("1.0.0", (locked("acme", tarball(FILES, ("run",)), FILES, ("run",)),))


def problems(folder: InstallFolder, wanted: Release | None) -> tuple[str, ...]:
    (installed,) = folder.versions()
    return verify(folder, installed, wanted, HERE).problems


def test_an_untouched_installation_is_as_locked(folder: InstallFolder) -> None:
    (installed,) = folder.versions()
    found = verify(folder, installed, release(), HERE)
    assert (found.good, found.files, found.bytes) == (True, 3, sum(map(len, FILES.values())))


def rewrite(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"b")
    path.chmod(0o444)


def to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("../package.json")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other content": (lambda at: rewrite(at / "lib/a.txt"), "lib/a.txt has other content"),
    "missing": (lambda at: (at / "lib/a.txt").unlink(), "lib/a.txt is missing"),
    "more": (lambda at: (at / "lib/b.txt").write_text(""), "lib/b.txt does not belong there"),
    "a link in its place": (lambda at: to_link(at / "lib/a.txt"), "lib/a.txt is not a file"),
    "a link to a folder": (lambda at: (at / "l").symlink_to("lib"), "l does not belong there"),
    "not executable": (lambda at: (at / "run").chmod(0o444), "run has another mode"),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_named(folder: InstallFolder, change: Callable[[Path], object], said: str) -> None:
    change(folder.version("1.0.0") / "node_modules/acme")
    assert problems(folder, release()) == (f"node_modules/acme/{said}",)


def test_a_file_changed_together_with_the_record_is_found_by_the_lock(folder: InstallFolder) -> None:
    place = folder.version("1.0.0")
    rewrite(place / "node_modules/acme/lib/a.txt")
    record = place / RECORD
    old, new = (hashlib.sha256(each).hexdigest().encode() for each in (b"a", b"b"))
    record.write_bytes(record.read_bytes().replace(old, new))
    assert problems(folder, release()) == ("node_modules/acme is not acme@1.0.0 as the lock names it",)


def test_a_version_that_the_lock_no_longer_has_is_told(folder: InstallFolder) -> None:
    assert problems(folder, None) == ("1.0.0 is not in the lock of this Legation",)


def test_packages_that_the_lock_has_otherwise_are_told(folder: InstallFolder) -> None:
    other = msgspec.structs.replace(release().packages[0], at="node_modules/other")
    assert problems(folder, Release("1.0.0", (other,))) == (
        "node_modules/acme is not in the lock",
        "node_modules/other is missing",
    )


def test_an_installation_without_its_record_counts_for_nothing(folder: InstallFolder) -> None:
    (folder.version("1.0.0") / RECORD).write_text("{}")
    assert folder.versions() == ()
