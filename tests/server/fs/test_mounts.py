"""Mounts, in a mount namespace of a child's own: another name of Legation's folder, and another disk in a tree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]

LOOK = """
import asyncio, subprocess, sys
from pathlib import Path
from tests.server.fs.drive import open_drive

async def main():
    drive = open_drive(Path(sys.argv[1]))
    alias, disk = drive.root / "sub" / "alias", drive.root / "tree" / "disk"
    for folder in (alias, disk, drive.root / "tree" / "a"):
        folder.mkdir(parents=True)
    subprocess.run(["mount", "--bind", drive.data, alias], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    (disk / "kept").write_text("kept")
    (drive.root / "empty").mkdir()
    print(
        (await drive.read("sub/alias/keys.json")).status,
        (await drive("GET", "entries", path="sub/alias")).status,
        (await drive.write("sub/alias/new")).status,
        (await drive("DELETE", "entry", path="sub", recursive="true")).status,
        "alias" in await drive.names("sub"),
    )
    print(
        (await drive("DELETE", "entry", path="tree", recursive="true")).status,
        (disk / "kept").read_text(),
        (await drive.read("tree/disk/kept")).body,
        (await drive("POST", "move", body={"from": "tree/disk/kept", "to": "here"})).status,
    )
    assert (drive.data / "keys.json").read_text() == "key"
    assert not (drive.root / "here").exists()

asyncio.run(main())
"""


def test_a_mount_is_no_way_to_what_is_legations_own_and_is_not_emptied(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["unshare", "--mount", "--", sys.executable, "-c", LOOK, str(tmp_path / "place")],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unshare" in ran.stderr or "mount:" in ran.stderr:
        pytest.skip(f"no mounts here: run the tests as root to have this one ({ran.stderr.strip()[:80]})")
    assert ran.stdout == "403 403 403 403 False\n409 kept b'kept' 409\n", ran.stderr
