"""The places that Legation opens for nobody, and every way by which somebody could have one opened.

The table of ways comes first: whoever adds a way to open a file finds it here, because the test that reads the source
fails, and gives it a probe. Each probe tries each place by each of its names.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.openers import openers

from legation.agents.rpc import RpcFault
from legation.errors import Forbidden, InvalidParams, LegationError
from legation.host import create_default_fs_handler, create_default_terminal_handler, skills
from legation.host.changes import Snapshot
from legation.host.host import AcpHost
from legation.host.options import HostOptions
from legation.host.requests.services import SessionFiles
from legation.proc import ProcessLauncher
from legation.server.fs import operations
from legation.server.fs.operations import AtomicFile, RegularFile
from legation.server.fs.paths import Confinement, ServedFolders
from legation.server.fs.upload import Unpacker
from legation.server.sessions.messages import links_to
from legation.settings import load
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import CreateTerminalRequest, ReadTextFileRequest, WriteTextFileRequest
from legation.wire.api.sessions import Attachment

SOURCE = Path(__file__).parents[1] / "src" / "legation"
PARTS = ("agents", "approvals", "gateway", "host", "runs", "server")  # whatever works for agents and callers
CANARY = "canary-5f1e"

# Modules that open what an agent or a caller named, with all functions in them that open something, and the probes
# (below) that such a name is tried with.
WAYS: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "host/options.py": ({"SessionPlace.meta", "real_folder"}, ("session's folder",)),
    "host/skills.py": (
        {
            "_beneath",
            "_clone",
            "_copy",
            "_copy_file",
            "_made",
            "_opened",
            "_folders_in",
            "_tree",
            "put_texts",
        },
        ("fs folder", "skill"),
    ),
    "host/requests/services.py": (
        {
            "DefaultTerminals._start",
            "SessionFiles._locate",
            "SessionFiles._open",
            "SessionFiles.read",
            "SessionFiles.write",
            "_confined",
        },
        ("reverse read", "reverse write", "terminal"),
    ),
    "host/changes/snapshot.py": ({"_Scan._content", "_Scan.files"}, ("capture",)),
    "host/changes/git.py": (
        {
            "Git._exclude",
            "Git.borrow",
            "Git.run",
            "Git.write_blob",
            "Scratch.__init__",  # a temporary folder of its own, as in the next two
            "_remove",
            "_sweep",
            "_lay_out",
            "read_regular",
        },
        ("capture by git",),
    ),
    "host/changes/gittree.py": (
        {"GitTree._patch", "GitTree._seed", "GitTree.changes", "_sections"},
        ("capture by git",),
    ),
    "runs/sandbox.py": (
        {
            "SandboxProvider._clone",  # below the run's own folder, as all here; where it is from, and works, is asked of `folder`
            "SandboxProvider._command",
            "SandboxProvider._forget",
            "SandboxProvider._git",
            "_make_plugin",
            "_remove",
            "_remove_but",
        },
        ("fs folder",),
    ),
    "server/fs/paths.py": (
        {"ConfinedEntry.open_folder", "_PathWalk.__init__", "_PathWalk._step", "_served"},
        ("fs read", "fs list", "fs folder"),
    ),
    "server/fs/operations.py": (
        {
            "AtomicFile.close",
            "AtomicFile.place",
            "AtomicFile.start",
            "RegularFile.__init__",
            "_children",
            "_remove_one",
            "_rename_to_nothing",
            "_replace",
            "_some_names",
            "_swap",
            "make_folder",
            "remove",
            "remove_tree",
        },
        (
            "fs list",
            "fs read",
            "fs write",
            "fs upload",
            "fs delete",
            "fs move",
            "fs move onto",
            "fs make folder",
        ),
    ),
    "server/processes/start.py": ({"_command"}, ("fs folder",)),
    "server/sessions/messages.py": ({"_link"}, ("attachment",)),
    "server/sessions/service.py": (
        {
            "SessionService.create",
            "SessionService._folder",
            "SessionService._remove_folder",
            "remove_folder",
        },
        ("fs folder",),
    ),
}

# Modules, or folders of them, that open no file of anybody's choice, and why that is so.
OWN = {
    "agents/amp": "its gate, settings and threads, in the agent's home and temporary folder",
    "agents/driver.py": "looks which configuration a folder brings; nothing of it is told to anybody",
    "agents/catalogue": "the catalogue, the agents file in force and agents' homes",
    "agents/claude": "the list of MCP servers, in the agent's temporary folder",
    "agents/codex": "looks which orders a folder brings, and resolves its name; nothing of it is told to anybody",
    "agents/install": "packages of agents, in the data folder",
    "agents/opencode/launch.py": "looks which plug-ins a folder brings; nothing of it is told to anybody",
    "agents/outlines.py": "starts the reader of long lines, which gets each as a file in memory",
    "agents/pool.py": "starts agents with the folder that the host chose for them",
    "agents/rehearsal": "an agent, in a process of its own",
    "approvals/notify/command.py": "the program that the owner set for notices",
    "server/routes/dashboard.py": "the page, which is part of the package",
    "server/mesh.py": "the list of agents that run, in the data folder",
    "server/sessions/recordings.py": "what `legation exec` recorded, in the data folder, by the names that are there",
    "host/turn.py": "resolves the name of a path that was asked about, and opens nothing of it",
    "approvals/policy/facts.py": "resolves the name of a path, and opens nothing of it (O_PATH)",
    "approvals/policy/load.py": "the policy in force, and files of this package",
    "approvals/policy/shell/lines.py": "runs the reader of shell lines, on a text",
    "approvals/trace/export.py": "the trace of an exec, in the data folder",
    "gateway/toolfile.py": "the tools file in force",
    "host/agent.py": "agents' homes and temporary folders, in the data folder",
    "server/address.py": "the port, in the data folder",
    "server/fs/files.py": "the name of that folder",
    "server/sessions/hosts.py": "the list of agents that run, in the data folder",
    "server/http/pages.py": "files of this package",
    "server/installation.py": "the data folder itself, and the server's name in it",
    "server/logs.py": "the server's log, in the data folder",
    "server/processes/trampoline.py": "its own environment, in the process that becomes the command",
    "server/retention.py": "folders that were made for sessions, below the data folder",
    "server/run.py": "the file that says where the server is, in the data folder",
    "server/sessions/record.py": "names of secrets of sessions that are being made, in the data folder",
}


@cache
def found() -> dict[str, set[str]]:
    paths = [path for part in PARTS for path in sorted((SOURCE / part).rglob("*.py"))]
    return {str(path.relative_to(SOURCE)): names for path in paths if (names := openers(path))}


def is_own(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}/") for name in OWN)


@pytest.mark.heavy
def test_every_function_that_opens_something_is_known() -> None:
    unknown = {
        module: sorted(extra)
        for module, names in found().items()
        if not is_own(module) and (extra := names - WAYS.get(module, (set(), ()))[0])
    }
    assert not unknown, (
        "these open files or folders: have them ask the list of forbidden places, add them to WAYS with a probe, or say "
        "in OWN why nobody else chooses what they open"
    )


@pytest.mark.heavy
def test_the_table_of_ways_is_current() -> None:
    here = found()
    assert {
        name: extra for name, (names, _) in WAYS.items() if (extra := names - here.get(name, set()))
    } == {}
    assert [
        name for name in OWN if not any(each == name or each.startswith(f"{name}/") for each in here)
    ] == []
    assert not [name for name in WAYS if is_own(name)]


@pytest.mark.parametrize(
    "line",
    [
        "def new(p):\n    return p.read_text()\n",
        "import os\ndef new(p):\n    return os.open(p, 0)\n",
        "from os import open as o\ndef new(p):\n    return o(p, 0)\n",
        "def new(p):\n    with open(p) as f: return f.read()\n",
        "def new(p):\n    with p.open('rb') as f: return f.read()\n",
        "import asyncio\nasync def new(p):\n    return await asyncio.to_thread(p.read_bytes)\n",
        "from shutil import copytree\ndef new(p):\n    copytree(p, p)\n",
        "import shutil\ndef new(p):\n    shutil.copy(p, p)\n",
        "import os\ndef new(p):\n    return [*os.scandir(p)]\n",
        "from legation.proc import Command\ndef new(p):\n    return Command((), p, {}, 'x')\n",
        "from starlette.responses import FileResponse\ndef new(p):\n    return FileResponse(p)\n",
    ],
)
def test_a_new_way_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "new.py").write_text(line)
    assert openers(tmp_path / "new.py") == {"new"}


def test_every_way_has_a_probe() -> None:
    assert {probe for _, probes in WAYS.values() for probe in probes} == {*OF_FILES, *OF_FOLDERS, *CAPTURES}


# A home with all of it in it, and in a project there the names that an agent made for it.


@dataclass
class House:
    home: Path
    data: Path
    files: dict[str, Path]
    folders: dict[str, Path]
    forbidden: ForbiddenPlaces

    @property
    def served(self) -> Confinement:
        return ServedFolders([self.home], self.forbidden).everywhere()

    def content(self) -> dict[str, object]:
        """Everything that is there, by name: what it says, or where it leads."""
        return {
            str(path): path.readlink() if path.is_symlink() else path.read_bytes()
            for path in self.home.rglob("*")
            if path.is_symlink() or path.is_file()
        }


@pytest.fixture
def house(tmp_path: Path) -> House:
    home, rules, proj = tmp_path / "home", tmp_path / "home/rules", tmp_path / "home/proj"
    data = home / ".local/share/legation"
    left = home / ".local/share/legation.before-restore-1"
    fresh = home / ".local/share/.legation-restore-x"
    files = {
        "keys": data / "keys.json",
        "token": data / "server.json",
        "database": data / "legation.db",
        "deep in the data": data / "blobs/ws/deep",
        "another session's": data / "work/ws/s/file",
        "replaced by a restore": data / "replaced/1/keys.json",
        "left by an earlier release": left / "keys.json",
        "left by a killed restore": fresh / "keys.json",
        "policy": rules / "policy.yaml",
        "tools": home / "tools.yaml",
        "agents": home / "agents.toml",
        "settings": home / ".config/legation/legation.toml",
        "TLS key": home / "tls.key",
    }
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {CANARY}\n")
    # Where the owner keeps his rules: two links away from what the settings name.
    (home / "middle.yaml").symlink_to("rules/policy.yaml")
    (home / "policy.yaml").symlink_to("middle.yaml")
    proj.mkdir()
    for name, path in list(files.items()):
        (proj / f"hard-{name}").hardlink_to(path)
        (proj / f"sym-{name}").symlink_to(path)
        files |= {f"hard link to {name}": proj / f"hard-{name}", f"link to {name}": proj / f"sym-{name}"}
    (proj / "data").symlink_to(data)
    files |= {
        "policy by its setting": home / "policy.yaml",
        "link on the way to the policy": home / "middle.yaml",
        "keys through a linked folder": proj / "data/keys.json",
        "new file in the data": data / "new",
        "new file in the home of agents": data / "agents/ws/x/home/new",
    }
    folders = {
        "data": data,
        "in the data": data / "blobs/ws",
        "of sessions": data / "work",
        "of another session": data / "work/ws/s",
        "linked": proj / "data",
        "left by an earlier release": left,
        "left by a killed restore": fresh,
        "replaced by a restore": data / "replaced/1",
    }
    flags: dict[str, object] = {
        "data_dir": data,
        "policy": home / "policy.yaml",
        "tools": home / "tools.yaml",
        "agents": home / "agents.toml",
        "tls_key": home / "tls.key",
    }
    environ = {"HOME": str(home)}
    return House(
        home, data, files, folders, ForbiddenPlaces.in_force(load(flags, environ), environ, listed(home))
    )


def listed(home: Path) -> list[Path]:
    """Dot-folders that would else be closed as such: to list one opens nothing of Legation's own."""
    return [home / ".local", home / ".config"]


Probe = Callable[[House, Path], Awaitable[str]]
"""What somebody gets out of it; most raise."""


async def reverse_read(house: House, path: Path) -> str:
    fs = create_default_fs_handler({"s": [house.home]}.get, house.forbidden)
    return (await fs.read_text_file(ReadTextFileRequest(session_id="s", path=str(path)))).content


async def reverse_write(house: House, path: Path) -> str:
    fs = create_default_fs_handler({"s": [house.home]}.get, house.forbidden)
    await fs.write_text_file(WriteTextFileRequest(session_id="s", path=str(path), content="mine"))
    return ""


async def fs_read(house: House, path: Path) -> str:
    return RegularFile(house.served, str(path)).read().decode()


async def fs_write(house: House, path: Path) -> str:
    draft = AtomicFile(house.served, str(path))
    try:
        draft.start()
        draft.write(b"mine")
        draft.place()
    finally:
        draft.close()
    return ""


async def fs_upload(house: House, path: Path) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(path.name)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"mine"))
    unpacking = Unpacker(house.served, str(path.parent), 1 << 20)
    try:
        unpacking.feed(out.getvalue())
        unpacking.end()
    finally:
        unpacking.close()
    return ""


async def fs_delete(house: House, path: Path) -> str:
    return operations.remove(house.served, str(path), recursive=True)


async def fs_move(house: House, path: Path) -> str:
    operations.move(house.served, str(path), str(house.home / "taken"), overwrite=False)
    return ""


async def fs_move_onto(house: House, path: Path) -> str:
    (house.home / "mine").write_text("mine")
    try:
        operations.move(house.served, str(house.home / "mine"), str(path), overwrite=True)
    finally:
        (house.home / "mine").unlink(missing_ok=True)
    return ""


async def attachment(house: House, path: Path) -> str:
    (link,) = links_to([Attachment(path=str(path))], [house.home], house.forbidden)
    return f"{CANARY} {link.uri}"


async def skill(house: House, path: Path) -> str:
    source, work = house.home / "skill", house.home / "work"
    source.mkdir()
    work.mkdir(exist_ok=True)
    (source / "SKILL.md").write_text("a skill")
    try:
        (source / "part").hardlink_to(os.path.realpath(path))
        skills.place(skills.find(source, None, None), work, house.forbidden)
        return "".join(each.read_text() for each in work.rglob("*") if each.is_file())
    finally:
        shutil.rmtree(source)
        shutil.rmtree(work)


OF_FILES: dict[str, Probe] = {
    "reverse read": reverse_read,
    "reverse write": reverse_write,
    "fs read": fs_read,
    "fs write": fs_write,
    "fs upload": fs_upload,
    "fs delete": fs_delete,
    "fs move": fs_move,
    "fs move onto": fs_move_onto,
    "attachment": attachment,
    "skill": skill,
}
# A link of the agent's own may go, or be replaced: that does nothing to what it leads to.
CHANGE_NAMES = ("fs delete", "fs move", "fs move onto")


async def terminal(house: House, path: Path) -> str:
    terminals = create_default_terminal_handler(
        ProcessLauncher(), {"PATH": os.defpath}, {"s": [house.home]}.get, forbidden=house.forbidden
    )
    try:
        await terminals.create(CreateTerminalRequest(session_id="s", command="true", cwd=str(path)))
    finally:
        await terminals.dispose()
    return CANARY


async def fs_list(house: House, path: Path) -> str:
    return str(operations.entries(house.served, str(path)))


async def fs_folder(house: House, path: Path) -> str:
    return str(operations.folder(house.served, str(path)))


async def fs_make_folder(house: House, path: Path) -> str:
    return operations.make_folder(house.served, str(path / "new"))


async def session_folder(house: House, path: Path) -> str:
    house.forbidden.check_session([house.home / "proj", path])
    return CANARY


OF_FOLDERS: dict[str, Probe] = {
    "terminal": terminal,
    "session's folder": session_folder,
    "fs list": fs_list,
    "fs folder": fs_folder,
    "fs make folder": fs_make_folder,
}


@pytest.mark.parametrize("way", OF_FILES)
async def test_no_way_opens_a_file_of_ours_by_any_name(house: House, way: str) -> None:
    before, got = house.content(), []
    for name, path in house.files.items():
        if way in CHANGE_NAMES and name.startswith("link to"):
            continue
        if way == "skill" and not path.exists():
            continue
        try:
            said = await OF_FILES[way](house, path)
        except (LegationError, RpcFault):
            said = ""
        assert house.content() == before, f"{way} changed {name}"
        if CANARY in said:
            got.append(name)
    assert got == []


CAPTURES = {"capture": False, "capture by git": True}


@pytest.mark.parametrize("way", CAPTURES)
async def test_what_changed_of_ours_is_told_and_not_how(house: House, way: str) -> None:
    mine = house.home / "proj/mine.txt"
    mine.write_text("mine\n")
    if CAPTURES[way]:
        subprocess.run(["git", "init", "-q", str(house.home)], check=True, env={"PATH": os.environ["PATH"]})
    async with await Snapshot.take(house.home, house.forbidden) as snapshot:
        for path in {Path(os.path.realpath(each)) for each in (*house.files.values(), mine)}:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{'of mine' if path == mine else CANARY} more\n")
        changes = await snapshot.changes()
    assert "+of mine more" in changes.diff
    assert CANARY not in changes.diff
    names = {each.path for each in changes.files}
    assert {"proj/mine.txt", "rules/policy.yaml", "tools.yaml", "proj/hard-keys"} <= names
    assert not [name for name in names if ".local/share" in name]  # where our own work changes much
    assert "Legation's own" in (changes.incomplete or "")


@pytest.mark.parametrize("way", OF_FOLDERS)
async def test_no_way_opens_a_folder_of_ours_by_any_name(house: House, way: str) -> None:
    got = []
    for name, path in house.folders.items():
        if (way, name) == ("session's folder", "of another session"):
            continue  # the server makes those and names them to its host; whoever calls it cannot (`fs folder`)
        try:
            await OF_FOLDERS[way](house, path)
        except (Forbidden, InvalidParams, RpcFault):
            continue
        got.append(name)
    assert got == []


async def test_what_is_beside_them_is_opened_by_every_way(house: House) -> None:
    """So that the tests above cannot pass because nothing works at all."""
    mine = house.home / "proj/mine.txt"
    mine.write_text("mine")
    os.link(mine, house.home / "proj/again")
    await reverse_write(house, mine)
    await fs_write(house, mine)
    await fs_upload(house, mine)
    assert await reverse_read(house, mine) == await fs_read(house, mine) == "mine"
    assert "mine.txt" in await attachment(house, mine)
    assert "mine" in await skill(house, mine)
    await terminal(house, house.home / "proj")
    await session_folder(house, house.home)
    assert await fs_folder(house, house.home / "proj") == str(house.home / "proj")
    assert "mine.txt" in await fs_list(house, house.home / "proj")
    assert await fs_make_folder(house, house.home / "proj")
    await fs_move(house, mine)
    await fs_delete(house, house.home / "taken")


async def test_nothing_of_ours_is_listed(house: House) -> None:
    beside = [entry.name for entry in operations.entries(house.served, str(house.data.parent))]
    assert beside == []
    names = {entry.name for entry in operations.entries(house.served, ".")}
    assert "rules" in names
    assert not names & {"tools.yaml", "agents.toml", "tls.key"}


async def test_a_policy_that_an_editor_replaced_is_still_refused(house: House) -> None:
    rules = house.home / "rules"
    (rules / "new").write_text(f"new {CANARY}")
    (rules / "new").replace(rules / "policy.yaml")
    os.link(rules / "policy.yaml", house.home / "proj/anew")
    for path in (rules / "policy.yaml", house.home / "proj/anew"):
        for way in (reverse_read, reverse_write, fs_read, fs_write, attachment):
            with pytest.raises((RpcFault, LegationError)):
                await way(house, path)
    assert (rules / "policy.yaml").read_text() == f"new {CANARY}"


async def test_a_policy_that_is_not_there_cannot_be_written(house: House) -> None:
    for gone in (house.home / "rules/policy.yaml", house.home / ".config/legation/legation.toml"):
        gone.unlink()
        for way in (reverse_write, fs_write, fs_upload, fs_move_onto):
            with pytest.raises((RpcFault, LegationError)):
                await way(house, gone)
        assert not gone.exists()


async def test_what_a_folder_of_policies_takes_from_elsewhere_is_refused(house: House) -> None:
    (house.home / "policies").mkdir()
    (house.home / "shared.yaml").write_text(CANARY)
    (house.home / "policies/a.yaml").symlink_to("../shared.yaml")
    environ = {"HOME": str(house.home)}
    settings = load({"data_dir": house.data, "policy": house.home / "policies"}, environ)
    house.forbidden = ForbiddenPlaces.in_force(settings, environ, listed(house.home))
    for way in (reverse_read, reverse_write, fs_read, fs_write, fs_delete):
        with pytest.raises((RpcFault, LegationError)):
            await way(house, house.home / "shared.yaml")
    assert (house.home / "shared.yaml").read_text() == CANARY


@pytest.mark.parametrize("way", CHANGE_NAMES)
async def test_a_link_on_the_way_from_a_folder_of_policies_stays_where_it_is(house: House, way: str) -> None:
    (house.home / "policies").mkdir()
    (house.home / "shared.yaml").write_text(f"# {CANARY}\n")
    (house.home / "between.yaml").symlink_to("shared.yaml")
    (house.home / "policies/a.yaml").symlink_to("../between.yaml")
    environ = {"HOME": str(house.home)}
    settings = load({"data_dir": house.data, "policy": house.home / "policies"}, environ)
    house.forbidden = ForbiddenPlaces.in_force(settings, environ, listed(house.home))
    with pytest.raises(Forbidden):
        await OF_FILES[way](house, house.home / "between.yaml")
    assert (house.home / "policies/a.yaml").read_text() == f"# {CANARY}\n"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/1/environ", "/proc/self/root/etc/hostname"])
async def test_what_the_kernel_tells_is_refused_to_whoever_works_in_the_root_folder(
    house: House, path: str
) -> None:
    files = SessionFiles([Path("/")], house.forbidden)
    request = ReadTextFileRequest(session_id="s", path=path)
    if "root" in path:
        request = ReadTextFileRequest(session_id="s", path=f"/proc/self/root{house.data}/keys.json")
    with pytest.raises(RpcFault, match="Legation's own or the system's"):
        files.read(request)


@pytest.mark.parametrize("folder", ["/proc", "/proc/self", "/proc/self/task", "/sys", "/dev"])
def test_no_session_works_in_what_is_the_kernels(house: House, folder: str) -> None:
    with pytest.raises(Forbidden):
        house.forbidden.check_session([Path(folder)])


async def test_a_sessions_own_folder_in_the_data_folder_is_open_to_it_alone(house: House) -> None:
    own, other = house.data / "work/ws/mine", house.data / "work/ws/s"
    own.mkdir()
    (own / "sub").mkdir()
    files = SessionFiles([own], house.forbidden)
    files.write(WriteTextFileRequest(session_id="s", path=str(own / "sub/a"), content="a"))
    os.link(own / "sub/a", own / "b")
    for name in ("sub/a", "b"):
        assert files.read(ReadTextFileRequest(session_id="s", path=str(own / name))).content == "a"
    house.forbidden.check_session([own])
    os.link(house.data / "keys.json", own / "keys")
    os.link(other / "file", own / "other")
    (own / "up").symlink_to(house.data)
    for name in ("keys", "other", "up/keys.json"):
        with pytest.raises(RpcFault):
            files.read(ReadTextFileRequest(session_id="s", path=str(own / name)))
    with pytest.raises(Forbidden):
        house.forbidden.in_workspace("other").check_session([own])
    house.forbidden.in_workspace("ws").check_session([own])
    for folders in ([house.data], [house.data / "work"], [house.data / "work/ws"]):
        with pytest.raises(Forbidden):
            house.forbidden.check_session(folders)
        with pytest.raises(RpcFault):
            SessionFiles(folders, house.forbidden).read(
                ReadTextFileRequest(session_id="s", path=str(other / "file"))
            )


async def test_a_host_begins_no_session_in_a_folder_of_ours(house: House) -> None:
    async with AcpHost(HostOptions(data_dir=house.data, forbidden=house.forbidden)) as host:
        agent = await host.spawn_agent(_rehearsal(house))
        del house.folders["of another session"]  # as above
        for folder in house.folders.values():
            with pytest.raises(Forbidden):
                await host.create_session(agent.agent_id, cwd=folder)
            with pytest.raises(Forbidden):
                await host.create_session(
                    agent.agent_id, cwd=house.home / "proj", additional_directories=[folder]
                )
        await host.create_session(agent.agent_id, cwd=house.home)


def _rehearsal(house: House) -> dict[str, object]:
    from legation.agents import catalogue

    argv = catalogue.command_of("rehearsal")
    return {"id": "rehearsal", "command": argv[0], "args": argv[1:], "cwd": house.home}
