"""Dot-folders directly below the home: closed unless they are listed, whichever way leads there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import httpx2
import pytest
from tests.agents.bytes_agent import PRELUDE
from tests.cli.command import LIMIT
from tests.cli.server_process import running
from tests.server.fs.drive import Drive, app_of, open_drive

from legation.errors import Forbidden
from legation.server.fs.files import Files
from legation.server.fs.paths import ServedFolders
from legation.store.forbidden import ForbiddenPlaces


def at_home(place: Path, *listed: str) -> Drive:
    """A drive whose root is the home folder of whoever runs the server."""
    drive = open_drive(place)
    for name in (".ssh", ".config/tool"):
        (drive.root / name).mkdir(parents=True)
        (drive.root / name / "key").write_text("key")
    (drive.root / ".env").write_text("plain")
    named = [drive.root / each for each in listed]
    forbidden = ForbiddenPlaces([drive.data], home=drive.root, listed=named)

    async def folders_of(_session: str, _workspace: str) -> list[Path]:
        return [drive.root]

    drive.files = Files(ServedFolders([drive.root, *named], forbidden), folders_of)
    drive.app = app_of(drive.files, drive.clock, drive.revoked)
    return drive


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return at_home(tmp_path)


async def test_nothing_in_one_is_read_written_listed_or_made(drive: Drive) -> None:
    (drive.root / "link").symlink_to(".ssh")
    (drive.root / "key").symlink_to(drive.root / ".ssh/key")
    for path in (".ssh/key", "link/key", "key", drive.root / ".ssh/key", ".config/tool/key"):
        assert (await drive.read(path)).status == 403, path
        assert (await drive.read(path, sessionId="s")).status == 403, path
        assert (await drive.write(path)).status == 403, path
    for path in (".ssh", "link", ".config/tool", ".aws/none"):
        assert (await drive("GET", "entries", path=path)).status == 403, path
    got = await drive.write(".aws/credentials")
    assert got.status == 403
    assert "`--folder`" in got.json()["detail"]
    assert (await drive("POST", "mkdir", path=".aws")).status == 403
    assert (await drive("POST", "mkdir", path=".aws/deep")).status == 403
    assert (await drive("DELETE", "entry", path=".ssh", recursive="true")).status == 403
    assert not (drive.root / ".aws").exists()
    assert (drive.root / ".ssh/key").read_text() == "key"


async def test_none_is_moved_away_or_made_by_moving(drive: Drive) -> None:
    moves = [(".ssh", "open"), ("sub", ".aws"), (".ssh/key", "key"), ("a.txt", ".ssh/key")]
    for source, target in moves:
        body = {"from": source, "to": target, "overwrite": True}
        assert (await drive("POST", "move", body=body)).status == 403, (source, target)
    assert (drive.root / "sub").is_dir()


async def test_dot_files_and_dot_folders_further_down_are_like_any_other(drive: Drive) -> None:
    assert (await drive.read(".env")).body == b"plain"
    assert (await drive.write(".env")).status == 200
    assert (await drive.write(".new")).status == 200
    assert (await drive("POST", "move", body={"from": ".new", "to": ".gitconfig"})).status == 200
    assert (await drive("DELETE", "entry", path=".gitconfig")).status == 200
    assert (await drive.write("sub/.git/config")).status == 200
    assert {".ssh", ".env"} <= set(await drive.names())


async def test_one_that_is_listed_is_open_and_no_other(tmp_path: Path) -> None:
    drive = at_home(tmp_path, ".config/tool")
    assert (await drive.read(".config/tool/key")).body == b"key"
    assert (await drive.write(".config/tool/deep/new")).status == 200
    assert (await drive.write(".config/other")).status == 403
    assert (await drive("GET", "entries", path=".config")).status == 403
    assert (await drive.read(".ssh/key")).status == 403


async def test_the_home_itself_is_not_moved_or_deleted(tmp_path: Path) -> None:
    drive = at_home(tmp_path)
    above = ServedFolders([tmp_path], ForbiddenPlaces(home=drive.root))
    drive.files = Files(above, lambda *_: _none())
    drive.app = app_of(drive.files, drive.clock, drive.revoked)
    assert (await drive("POST", "move", body={"from": "root", "to": "other"})).status == 403
    assert (await drive("DELETE", "entry", path="root", recursive="true")).status == 403
    assert (await drive.read("root/.ssh/key")).status == 403
    assert (await drive.read("root/a.txt")).status == 200


async def _none() -> None:
    return None


def test_a_session_works_in_one_that_it_began_in(tmp_path: Path) -> None:
    home = Path(os.path.realpath(tmp_path))
    (home / ".dotfiles/zsh").mkdir(parents=True)
    forbidden = ForbiddenPlaces(home=home)
    own = forbidden.of_session([home / ".dotfiles"])
    own.check_name((home / ".dotfiles/zsh").parts)
    with pytest.raises(Forbidden, match="begins with a dot"):
        own.check_name((home / ".ssh/key").parts)
    with pytest.raises(Forbidden, match="begins with a dot"):
        forbidden.check_folder(home / ".dotfiles")


READS = """
hello(); session()
prompt = prompted()
here = os.getcwd()
for number, path in enumerate((".ssh/key", "link/key", "plain.txt"), 10):
    params = {"sessionId": "s1", "path": f"{here}/{path}"}
    send(id=number, method="fs/read_text_file", params=params)
    said = answer(number)
    update(path + ": " + (said["error"]["message"] if "error" in said else said["result"]["content"]) + chr(10))
params = {"sessionId": "s1", "path": here + "/.ssh/authorized_keys", "content": "mine"}
send(id=20, method="fs/write_text_file", params=params)
update("write: " + answer(20).get("error", {"message": "done"})["message"])
done(prompt)
stay()
"""


@pytest.mark.heavy
def test_an_agent_that_works_in_the_home_is_not_served_them_either(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "key").write_text("a private key")
    (tmp_path / "link").symlink_to(".ssh")
    (tmp_path / "plain.txt").write_text("plain")
    agents, policy = tmp_path / "agents.toml", tmp_path / "policy.yaml"
    args = json.dumps(["-I", "-S", "-c", PRELUDE + READS])
    agents.write_text(f"[agents.reads]\ncommand = {sys.executable!r}\nargs = {args}\n")
    policy.write_text("name: p\nagent: '*'\nrules:\n  - {id: all, action: allow}\n")
    with running(
        tmp_path, "server", "--no-token", LEGATION_AGENTS=str(agents), LEGATION_POLICY=str(policy)
    ) as server:
        server.line()
        url = server.server_file().url
        new = {"agent": "reads", "directory": str(tmp_path)}
        assert httpx2.post(f"{url}/v1/sessions/s", json=new, timeout=LIMIT).status_code == 200
        assert httpx2.post(f"{url}/v1/sessions/s/messages", json={"message": "go"}, timeout=LIMIT).is_success
        said = ""
        with httpx2.stream("GET", f"{url}/v1/sessions/s/events/sse", timeout=LIMIT) as events:
            for line in events.iter_lines():
                said += line
                if '"turn.ended"' in line:
                    break
    assert "plain.txt: plain" in said
    assert "a private key" not in said
    for what, path in ((".ssh/key", ".ssh/key"), ("link/key", "link/key"), ("write", ".ssh/authorized_keys")):
        assert f"{what}: {tmp_path}/{path} is not for agents: " in said
    assert not (tmp_path / ".ssh" / "authorized_keys").exists()
