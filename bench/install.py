"""A fresh environment with Legation and what it needs to run: how many packages, how much on the disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from bench.harness import ROOT
from bench.measure import emit

NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils")  # a venv brings them
REQUIREMENTS = ROOT / "requirements" / "run.txt"


def install(folder: Path) -> Path:
    """Returns the site-packages, with everything compiled as pip does it."""
    uv = shutil.which("uv")
    venv.create(folder, with_pip=not uv, symlinks=True)
    python = str(folder / "bin" / "python")
    pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    subprocess.run([*pip, "-q", "--require-hashes", "-r", str(REQUIREMENTS)], check=True, stdout=sys.stderr)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    shutil.copytree(
        ROOT / "src" / "legation", packages / "legation", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run([python, "-m", "compileall", "-q", str(packages)], check=True, stdout=sys.stderr)
    return packages


def is_ours(path: Path) -> bool:
    return path.name.partition("-")[0] not in NOT_OURS


def size_on_disk(entry: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (entry, *entry.rglob("*")))


def main(scratch: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        entries = [entry for entry in install(Path(name)).iterdir() if is_ours(entry)]
        packages = 1 + sum(entry.suffix == ".dist-info" for entry in entries)  # Legation itself has none here
        size = sum(size_on_disk(entry) for entry in entries)
    emit({"packages": packages, "MB": size / 1e6})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
