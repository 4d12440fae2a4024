"""`deploy/` and docs/deploy.md: units that systemd takes, the wheel in a root that has nothing else, snippets that parse."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.fresh_clone import INSTALL_LIMIT, ROOT, fresh_clone, newcomer_environment

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))
LIMIT = 120.0  # seconds for anything but an install, on a busy machine


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


# systemd.


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"cannot check units without {name}: apt-get install systemd")
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_what_systemd_takes(unit: str, tmp_path: Path) -> None:
    text = (DEPLOY / unit).read_text()
    start = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert len(start) == 1
    # It wants the program to be there, and says nothing of what else it is.
    (path := tmp_path / unit).write_text(text.replace(start[0], "/bin/true"))
    manager = ["--user"] if "default.target" in text else []
    done = subprocess.run(
        [program("systemd-analyze"), "verify", *manager, str(path)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if unit in line]
    assert (done.returncode, told) == (0, []), done.stderr


@pytest.mark.heavy
def test_the_units_of_the_machine_can_be_enabled(tmp_path: Path) -> None:
    machine = [unit for unit in UNITS if "multi-user.target" in (DEPLOY / unit).read_text()]
    assert machine == ["legation-worker.service", "legation.service"]
    (folder := tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    for unit in machine:
        shutil.copy(DEPLOY / unit, folder)
    command = [program("systemctl"), f"--root={tmp_path}", "enable", *machine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    wanted = folder / "multi-user.target.wants"
    assert sorted(path.name for path in wanted.iterdir()) == machine


def test_units_set_only_what_legation_knows() -> None:
    from legation.settings import FIELDS, variable

    known = {variable(field.name) for field in FIELDS}
    for unit in UNITS:
        named = set(re.findall(r"\bLEGATION_[A-Z_]+", (DEPLOY / unit).read_text()))
        assert named <= known, unit


# The Dockerfile, as far as that can be told without Docker.


def test_the_dockerfile_copies_what_is_there_and_starts_what_is_known() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
            ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{name}" in ignored, name
    start = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)[-1])
    assert start[0] == "server"
    assert "USER agent" in text  # never as root


# The wheel in a root with nothing else.

INSIDE = """
import subprocess, time
from legation.client import Legation

server = subprocess.Popen(["/opt/legation/bin/legation", "server", "--port", "4517"], cwd="/home/agent")
for _ in range(1200):
    try:
        with Legation.find() as legation:
            legation.ready()
            break
    except Exception:
        assert server.poll() is None, "the server ended"
        time.sleep(0.1)
with Legation.find() as legation:
    session = legation.sessions.create("rehearsal")
    with session.turn("#!rehearse\\nsay hello") as turn:
        kinds = [event.type for event in turn]
    print("a turn ended" if kinds[-1] == "turn.ended" else kinds)
    session.terminate()
    legation.stop()
print("the server ended with", server.wait(60))
"""


@pytest.mark.heavy
@pytest.mark.network
@pytest.mark.timeout(2 * INSTALL_LIMIT)
def test_the_wheel_works_in_a_root_that_has_nothing_else(tmp_path: Path) -> None:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("cannot make a bare root without bwrap: apt-get install bubblewrap")
    env = newcomer_environment(tmp_path / "home")
    clone, installed = fresh_clone(tmp_path / "clone"), tmp_path / "opt"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=clone, env=env, check=True, capture_output=True, timeout=LIMIT)
    (wheel,) = tmp_path.glob("legation-*.whl")
    # At the place that it is installed at, since programs of an environment name it.
    venv.create(installed, with_pip=True, symlinks=True)
    pip = [str(installed / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, env=env, check=True, capture_output=True, timeout=INSTALL_LIMIT)
    for script in (installed / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes().startswith(b"#!"):
            script.write_text(script.read_text().replace(str(installed), "/opt/legation"))
    python = Path(sys.base_prefix)
    inside = [
        *(bwrap, "--unshare-all", "--die-with-parent", "--clearenv", "--proc", "/proc", "--dev", "/dev"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--tmpfs", "/tmp", "--dir", "/home/agent"),
        *("--ro-bind", str(installed), "/opt/legation"),
        *(() if python.is_relative_to("/usr") else ("--ro-bind", str(python), str(python))),
        *("--setenv", "HOME", "/home/agent", "--setenv", "PATH", "/opt/legation/bin:/usr/bin:/bin"),
        *("--chdir", "/home/agent", "/opt/legation/bin/python", "-c", INSIDE),
    ]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=3 * LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["a turn ended", "the server ended with 0"]


# The page.


def test_snippets_parse() -> None:
    assert len(blocks("python")) == 3
    for each in blocks("python"):
        ast.parse(each)
    for each in blocks("sh"):
        done = subprocess.run(["bash", "-n"], input=each, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), each
    assert len(blocks("ts")) == 2


def test_what_was_not_run_is_said_so() -> None:
    for place in ("Docker", "E2B", "Daytona", "Modal", "Vercel", "Cloudflare"):
        assert place in PAGE
    rows = [line for line in PAGE.splitlines() if line.startswith(("| Docker", "| E2B"))]
    assert [("**no**" in row) for row in rows] == [True, True]
    assert "None of these was run" in PAGE


def test_each_file_is_named_on_the_page() -> None:
    for path in DEPLOY.iterdir():
        if path.name != "Dockerfile.dockerignore":
            assert path.name in PAGE, path.name
