"""The lock that is shipped, and locks that are refused."""

from __future__ import annotations

import msgspec
import pytest
from tests.agents.install.local_registry import locked

from legation.agents.catalogue.entries import KNOWN, Packaged
from legation.agents.install.lock import FILE, Lock, Package, Release, TargetMachine, read_lock, shipped
from legation.errors import ConfigInvalid, NotFound

X64 = TargetMachine("x64", "glibc", avx2=True)
PROGRAMS = [
    (entry.package, template)
    for entry in KNOWN
    if not entry.get
    for way in (entry.way,)
    if isinstance(way.program, Packaged)
    for template in (way.program.inside, *(inside for inside, _ in way.program.helpers.values()))
]


@pytest.mark.parametrize(("agent", "template"), PROGRAMS)
@pytest.mark.parametrize("target", [X64, TargetMachine("x64", "glibc", avx2=False)], ids=["avx2", "baseline"])
def test_every_program_that_is_started_is_in_a_locked_package(
    agent: str, template: str, target: TargetMachine
) -> None:
    release = shipped().wanted(agent)
    assert release
    path = target.fill(template)
    assert any(path.startswith(f"{package.at}/") for package in release.packages_for(target)), path


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
@pytest.mark.parametrize("cpu", ["x64", "arm64"])
@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_agents_are_locked_for_these_machines(agent: str, cpu: str, libc: str) -> None:
    assert shipped().release(agent, None).covers(TargetMachine(cpu, libc))


def test_one_platform_package_of_a_kind_is_chosen() -> None:
    for agent, count in {"claude": 1, "codex": 1, "opencode": 1}.items():
        packages = shipped().release(agent, None).packages_for(X64)
        assert len([each for each in packages if each.cpu]) == count


def test_the_lock_names_no_place_and_every_agent_offers_something() -> None:
    from importlib.resources import files

    assert "://" not in files("legation.agents.install").joinpath(FILE).read_text()
    for releases in shipped().agents.values():
        assert all(release.models for release in releases)


def test_a_version_that_is_not_locked_is_refused_with_those_that_are() -> None:
    wanted = shipped().wanted("codex")
    assert wanted
    with pytest.raises(NotFound, match=rf"cannot install codex 9\.9: the lock .* has {wanted.version}"):
        shipped().release("codex", "9.9")


GOOD = locked("good", b"x", {"a": b"a"})
BAD = {
    "a folder upwards": {"at": "node_modules/../../x"},
    "an absolute folder": {"at": "/node_modules/x"},
    "a folder elsewhere": {"at": "bin"},
    "a folder spelt oddly": {"at": "node_modules//x"},
    "a name that is a path": {"name": "../x"},
    "a name that is an address": {"name": "http://127.0.0.1/x"},
    "a weaker hash": {"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
    "no hash": {"integrity": ""},
    "no tree": {"tree": ""},
    "less than nothing": {"size": -1},
    "a version that is a path": {"version": "1/../.."},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_a_malformed_lock_is_refused_as_a_whole(change: dict[str, object]) -> None:
    package: Package = msgspec.structs.replace(GOOD, **change)
    good, bad = Release("1.0.0", (GOOD,)), Release("1.0.0", (package,))
    read_lock(msgspec.json.encode(Lock({"a": (good,)})))
    with pytest.raises(ConfigInvalid, match="malformed"):
        read_lock(msgspec.json.encode(Lock({"a": (good,), "b": (bad,)})))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"agents": {}, "more": 1}', b"\xff"])
def test_what_is_no_lock_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigInvalid, match="cannot read the lock"):
        read_lock(text)
