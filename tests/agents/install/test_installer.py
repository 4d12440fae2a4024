"""Installing from a registry that does what it should, and from ones that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agents.install.local_registry import (
    LocalRegistry,
    everything_in,
    integrity,
    link,
    locked,
    member,
    packed,
    tarball,
)

from legation.agents.install.folder import InstallFolder, verify
from legation.agents.install.installer import install, uninstall
from legation.agents.install.lock import Package, Release, TargetMachine
from legation.errors import Conflict, NotFound, StorageFailed, Unavailable
from legation.testing.clock import FakeClock

pytestmark = pytest.mark.heavy  # each brings its files to disk, and some have a process of their own

HERE = TargetMachine("x64", "glibc")
PATIENCE = 30.0  # seconds for a child or an event: the machine's time

MAIN = {"package.json": b'{"bin": "run.sh"}', "run.sh": b"#!/bin/sh\necho hi\n", "lib/a.txt": b"a" * 3000}
PLATFORM = {"bin/tool": b"\x7fELF" + bytes(range(256)) * 40}
INNER = {"index.js": b"inner"}


def offered(registry: LocalRegistry, **how: Any) -> Release:
    """An agent of three packages, one inside another; `how` is how the first is served."""
    main, platform, inner = tarball(MAIN), tarball(PLATFORM, ("bin/tool",)), tarball(INNER)
    packages = (
        locked("@acme/agent", main, MAIN, ("run.sh",)),
        locked("agent-linux-x64", platform, PLATFORM, ("bin/tool",), cpu=("x64",)),
        locked("inner", inner, INNER, at="node_modules/@acme/agent/node_modules/inner"),
        locked("agent-linux-arm64", b"never fetched", cpu=("arm64",)),
    )
    registry.serve(packages[0], main, **how)
    registry.serve(packages[1], platform)
    registry.serve(packages[2], inner)
    return Release("1.2.3", packages)


def only(package: Package) -> Release:
    return Release("1.2.3", (package,))


@pytest.fixture
def folder(tmp_path: Path) -> InstallFolder:
    return InstallFolder.of(tmp_path / "data", "acme")


def nothing_counts(folder: InstallFolder) -> bool:
    return folder.versions() == () and everything_in(folder.path) <= {".lock"}


def test_an_agent_is_installed_as_locked(registry: LocalRegistry, folder: InstallFolder) -> None:
    release, clock = offered(registry), FakeClock()
    found = install(release, folder, environ=registry.environ, target=HERE, clock=clock)
    assert (found.agent, found.version, found.at) == ("acme", "1.2.3", clock.now_ms())
    place = folder.version("1.2.3")
    assert everything_in(place) == {
        "installed.json",
        "node_modules/@acme/agent/package.json",
        "node_modules/@acme/agent/run.sh",
        "node_modules/@acme/agent/lib/a.txt",
        "node_modules/@acme/agent/node_modules/inner/index.js",
        "node_modules/agent-linux-x64/bin/tool",
    }
    assert os.access(place / "node_modules/agent-linux-x64/bin/tool", os.X_OK)
    assert verify(folder, found, release, HERE).problems == ()
    assert len(registry.asked) == 3
    assert everything_in(folder.path) == {".lock", *(f"1.2.3/{name}" for name in everything_in(place))}


def test_progress_ends_at_the_whole(registry: LocalRegistry, folder: InstallFolder) -> None:
    seen: list[tuple[int, int]] = []
    release = offered(registry)
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    install(release, folder, environ=registry.environ, target=HERE, progress=progress)
    whole = sum(package.packed for package in release.packages_for(HERE))
    assert seen[-1] == (whole, whole)
    assert seen == sorted(seen)


def test_what_is_installed_needs_no_network_any_more(registry: LocalRegistry, folder: InstallFolder) -> None:
    release = offered(registry)
    first = install(release, folder, environ=registry.environ, target=HERE)
    asked = len(registry.asked)
    nowhere = {"NPM_CONFIG_REGISTRY": "http://127.0.0.1:9"}
    assert install(release, folder, environ=nowhere, target=HERE) == first
    assert len(registry.asked) == asked


def test_again_replaces_what_was_changed(registry: LocalRegistry, folder: InstallFolder) -> None:
    release = offered(registry)
    install(release, folder, environ=registry.environ, target=HERE)
    changed = folder.version("1.2.3") / "node_modules/@acme/agent/lib/a.txt"
    changed.chmod(0o644)
    changed.write_text("other")
    install(release, folder, environ=registry.environ, target=HERE, again=True)
    assert changed.read_bytes() == MAIN["lib/a.txt"]


def test_the_same_version_locked_otherwise_is_installed_anew(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    install(offered(registry), folder, environ=registry.environ, target=HERE)
    other = {"index.js": b"another adapter"}
    body = tarball(other)
    package = locked("adapter", body, other)
    registry.serve(package, body)
    install(only(package), folder, environ=registry.environ, target=HERE)
    assert everything_in(folder.version("1.2.3")) == {"installed.json", "node_modules/adapter/index.js"}


def test_the_list_of_versions_tells_where_a_tarball_is(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    body = tarball(INNER)
    package = locked("@acme/odd", body, INNER)
    registry.serve_elsewhere(package, body)
    install(only(package), folder, environ=registry.environ, target=HERE)
    assert registry.asked[-2:] == ["/@acme%2Fodd", "/somewhere/else.tgz"]


def test_another_content_is_refused_and_never_unpacked(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    release, good = offered(registry), tarball(MAIN)
    longer = tarball({**MAIN, "more": bytes(range(256))})
    same_length = good[:4] + b"\1" + good[5:]  # the time in gzip's header: the files are even the same
    for body in (longer, same_length):
        registry.serve(release.packages[0], body)
        with pytest.raises(Conflict, match="not what the lock names"):
            install(release, folder, environ=registry.environ, target=HERE)
        assert nothing_counts(folder)


def test_a_longer_body_is_refused_without_taking_it_all(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    release, taken = offered(registry), list[int]()
    registry.serve(release.packages[0], tarball(MAIN) + b"\0" * 50_000_000)
    with pytest.raises(Conflict, match="not what the lock names"):
        install(
            release,
            folder,
            environ=registry.environ,
            target=HERE,
            progress=lambda done, _: taken.append(done),
        )
    assert taken[-1] < 5_000_000
    assert nothing_counts(folder)


def test_a_body_that_breaks_off_is_asked_for_again_and_then_given_up(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    release = offered(registry, cut_at=100)
    with pytest.raises(Unavailable, match=r"cannot fetch @acme/agent@1\.0\.0"):
        install(release, folder, environ=registry.environ, target=HERE)
    assert len([path for path in registry.asked if "@acme" in path]) == 3
    assert nothing_counts(folder)


def test_a_package_that_the_registry_lacks_is_named(registry: LocalRegistry, folder: InstallFolder) -> None:
    release = offered(registry)
    registry.files.clear()
    with pytest.raises(Unavailable, match="the registry does not have it"):
        install(release, folder, environ=registry.environ, target=HERE)
    assert nothing_counts(folder)


def test_a_registry_that_is_not_there_is_told(folder: InstallFolder, registry: LocalRegistry) -> None:
    release = offered(registry)
    with pytest.raises(Unavailable, match="look at the network"):
        install(release, folder, environ={"NPM_CONFIG_REGISTRY": "http://127.0.0.1:9"}, target=HERE)
    assert nothing_counts(folder)


def test_a_hostile_tarball_with_the_right_hash_leaves_nothing(
    registry: LocalRegistry, folder: InstallFolder, tmp_path: Path
) -> None:
    body = packed([member("package/../../../../escaped", b"x"), link("package/l", "../..")])
    package = locked("hostile", body, size=1000, files=10)
    registry.serve(package, body)
    with pytest.raises(Conflict, match=r"cannot unpack hostile@1\.0\.0"):
        install(only(package), folder, environ=registry.environ, target=HERE)
    assert nothing_counts(folder)
    assert everything_in(tmp_path) == {"data/agents/acme/.lock"}


def test_files_other_than_the_locked_ones_are_refused(registry: LocalRegistry, folder: InstallFolder) -> None:
    """The tarball's hash is right, and what is in it is not what the lock was made from."""
    body = tarball(INNER)
    package = locked("inner", body, {"index.js": b"INNER"})
    registry.serve(package, body)
    with pytest.raises(Conflict, match="its files are not those"):
        install(only(package), folder, environ=registry.environ, target=HERE)
    assert nothing_counts(folder)


def test_no_script_of_a_package_is_run(
    registry: LocalRegistry, folder: InstallFolder, tmp_path: Path
) -> None:
    script = f"touch {tmp_path}/ran"
    listing = msgspec.json.encode(
        {"scripts": dict.fromkeys(("preinstall", "install", "postinstall"), script)}
    )
    files = {"package.json": listing, "binding.gyp": b"{}"}
    body = tarball(files)
    package = locked("scripted", body, files)
    registry.serve(package, body)
    install(only(package), folder, environ=registry.environ, target=HERE)
    assert not (tmp_path / "ran").exists()


def test_a_machine_that_is_not_locked_for_is_told(registry: LocalRegistry, folder: InstallFolder) -> None:
    body = tarball(PLATFORM)
    with pytest.raises(NotFound, match="not locked for arm64 with musl"):
        install(
            only(locked("agent-linux-x64", body, PLATFORM, cpu=("x64",))),
            folder,
            environ=registry.environ,
            target=TargetMachine("arm64", "musl"),
        )
    assert registry.asked == []


def test_two_at_once_fetch_once(registry: LocalRegistry, folder: InstallFolder) -> None:
    release, start = offered(registry), threading.Barrier(2)

    def one() -> Any:
        start.wait(PATIENCE)
        return install(release, folder, environ=registry.environ, target=HERE)

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result(PATIENCE) for future in [pool.submit(one), pool.submit(one)])
    assert first == second
    assert sorted(registry.asked) == sorted(set(registry.asked))


def test_what_progress_raises_ends_it(registry: LocalRegistry, folder: InstallFolder) -> None:
    class Enough(Exception):
        pass

    def enough(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        install(offered(registry), folder, environ=registry.environ, target=HERE, progress=enough)
    assert nothing_counts(folder)


def test_uninstalling_removes_every_version_and_nothing_else(
    registry: LocalRegistry, folder: InstallFolder, tmp_path: Path
) -> None:
    home = tmp_path / "data/agents/local/acme/home"
    home.mkdir(parents=True)
    release = offered(registry)
    install(release, folder, environ=registry.environ, target=HERE)
    assert uninstall(folder) == ("1.2.3",)
    assert nothing_counts(folder)
    assert home.is_dir()
    assert uninstall(folder) == ()


def names_in(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


# In a process of its own, so that it can be killed or kept short of disk.

CHILD = """
import resource, sys, msgspec
from pathlib import Path
from legation.agents.install.folder import InstallFolder
from legation.agents.install.installer import install
from legation.agents.install.lock import Release, TargetMachine
limit = int(sys.argv[4])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
release = msgspec.json.decode(sys.argv[1], type=Release)
folder = InstallFolder.of(Path(sys.argv[2]), "acme")
try:
    install(release, folder, environ={"NPM_CONFIG_REGISTRY": sys.argv[3]}, target=TargetMachine("x64", "glibc"))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def child(release: Release, folder: InstallFolder, url: str, limit: int = 0) -> subprocess.Popen[str]:
    data = str(folder.path.parents[1])
    argv = [sys.executable, "-c", CHILD, msgspec.json.encode(release).decode(), data, url, str(limit)]
    env = {"PATH": os.defpath, "HOME": data}
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def test_a_killed_installation_counts_for_nothing_and_the_next_one_cleans_up(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    release = offered(registry, stall=True)
    with child(release, folder, registry.url) as killed:
        assert registry.reached.wait(PATIENCE)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(PATIENCE) == -signal.SIGKILL
    assert folder.versions() == ()
    assert any(name.startswith(".new-") for name in names_in(folder.path))
    registry.go_on.set()
    install(release, folder, environ=registry.environ, target=HERE)
    assert names_in(folder.path) == [".lock", "1.2.3"]


def test_one_that_waits_goes_on_when_the_other_is_killed(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    release = offered(registry, stall=True)
    with child(release, folder, registry.url) as killed:
        assert registry.reached.wait(PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(install, release, folder, environ=registry.environ, target=HERE)
            killed.send_signal(signal.SIGKILL)
            killed.wait(PATIENCE)
            registry.go_on.set()
            assert waiting.result(PATIENCE).version == "1.2.3"


def test_a_full_disk_is_told_and_nothing_is_left(registry: LocalRegistry, folder: InstallFolder) -> None:
    with child(offered(registry), folder, registry.url, limit=4096) as short:
        _, said = short.communicate(timeout=PATIENCE)
    assert short.returncode == 1
    assert said.startswith("StorageFailed: cannot install acme: File too large")
    assert nothing_counts(folder)


def test_too_little_space_is_told_before_anything_is_fetched(
    registry: LocalRegistry, folder: InstallFolder
) -> None:
    package = locked("vast", b"", size=10**18, integrity=integrity(b""))
    with pytest.raises(StorageFailed, match="MiB are free"):
        install(only(package), folder, environ=registry.environ, target=HERE)
    assert registry.asked == []


def test_the_token_of_the_registry_is_sent_to_it(
    registry: LocalRegistry, folder: InstallFolder, tmp_path: Path
) -> None:
    place = registry.url.removeprefix("http:")
    (tmp_path / ".npmrc").write_text(f"registry={registry.url}\n{place}/:_authToken=canary\n")
    install(offered(registry), folder, environ={"HOME": str(tmp_path)}, target=HERE)
    assert set(registry.tokens) == {"Bearer canary"}
