"""The dashboard's libraries: fetch them from npm by the lock, and write each as one minified ES module with its licence.

    python -m tools.vendor            write src/legation/dashboard/vendor anew
    python -m tools.vendor --check    say whether what is there is what the lock gives
    python -m tools.vendor --update   take the newest versions, lock them, and write

npm is asked with the owner's own settings, so that no registry is named here. Nothing is built when Legation is
installed or started: what this writes is committed.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
TARGET: Final = HERE.parents[1] / "src" / "legation" / "dashboard" / "vendor"
NPM_LIMIT: Final = 300.0  # seconds for npm to fetch a dozen packages: the network's time
_QUIET: Final = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--omit-lockfile-registry-resolved",
    "--silent",
)

# The usual ones: each costs a kilobyte or more of the 150 that the page may have.
# TypeScript's grammar holds JavaScript's.
LANGUAGES: Final = ("bash", "go", "json", "python", "rust", "typescript", "xml", "yaml")
# One module for what is always needed; the others load when a page first shows such content.
MODULES: Final = {
    "preact": (
        ("preact", "@preact/signals", "@preact/signals-core", "htm"),
        (
            'import { h } from "preact"; import htm from "htm"; export { render } from "preact";'
            'export { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";'
            'export { signal, computed, effect } from "@preact/signals";'
            "export const html = htm.bind(h);"
        ),
    ),
    "markdown": (("marked",), 'export { Lexer } from "marked";'),
    "diff": (("diff",), 'export { structuredPatch, diffWordsWithSpace } from "diff";'),
    "highlight": (
        ("highlight.js",),
        'import hljs from "highlight.js/lib/core";'
        + "".join(
            f'import {name} from "highlight.js/lib/languages/{name}";hljs.registerLanguage("{name}",{name});'
            for name in LANGUAGES
        )
        + "export default hljs;",
    ),
    "virtual": (
        ("@tanstack/virtual-core",),
        (
            "export { Virtualizer, elementScroll, measureElement, observeElementOffset, observeElementRect }"
            ' from "@tanstack/virtual-core";'
        ),
    ),
    "ansi": (("anser",), 'import Anser from "anser"; export default Anser;'),
}


def install(folder: Path, *, update: bool = False) -> Path:
    """Fetch what the lock names into a folder, checked against its hashes; return its node_modules."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("cannot fetch the dashboard's libraries without npm; install Node.js")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder / name)
    if update:
        named = json.loads((HERE / "package.json").read_text())
        newest = [f"{name}@latest" for each in ("dependencies", "devDependencies") for name in named[each]]
        _run(npm, "install", "--save-exact", *newest, *_QUIET, folder=folder)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, HERE / name)
    else:
        _run(npm, "ci", *_QUIET, folder=folder)
    return folder / "node_modules"


def write(packages: Path, target: Path) -> None:
    """Write every module and every licence."""
    target.mkdir(parents=True, exist_ok=True)
    for each in target.iterdir():
        each.unlink()
    for name, (parts, source) in MODULES.items():
        entry = packages.parent / f"{name}.js"
        entry.write_text(source)
        out = target / f"{name}.js"
        _run(
            packages / ".bin" / "esbuild",
            entry,
            "--bundle",
            "--minify",
            "--format=esm",
            "--target=es2022",
            "--legal-comments=none",
            f"--outfile={out}",
            "--log-level=error",
            folder=packages.parent,
        )
        versions = ", ".join(f"{part} {_version(packages / part)}" for part in parts)
        out.write_text(f"// {versions}; licences in LICENSES.txt\n{out.read_text()}")
    (target / "LICENSES.txt").write_text(_licences(packages))


def _licences(packages: Path) -> str:
    found = []
    for part in sorted(part for parts, _ in MODULES.values() for part in parts):
        text = next(iter(sorted((packages / part).glob("LICENSE*")))).read_text()
        found.append(f"{part} {_version(packages / part)}\n\n{text.strip()}\n")
    return ("\n" + "-" * 78 + "\n\n").join(found)


def _version(package: Path) -> str:
    return str(json.loads((package / "package.json").read_text())["version"])


def _run(*argv: str | Path, folder: Path) -> None:
    subprocess.run([str(part) for part in argv], cwd=folder, check=True, timeout=NPM_LIMIT)


def main(argv: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        packages = install(Path(scratch), update="--update" in argv)
        made = Path(scratch, "made")
        write(packages, made)
        names = sorted(each.name for each in made.iterdir())
        if "--check" in argv:
            there = sorted(each.name for each in TARGET.iterdir())
            _, other, missing = filecmp.cmpfiles(made, TARGET, names, shallow=False)
            for name in sorted({*other, *missing, *(set(there) - set(names))}):
                print(f"{TARGET.name}/{name} is not what the lock gives; run python -m tools.vendor")
            return 1 if other or missing or there != names else 0
        shutil.copytree(made, TARGET, dirs_exist_ok=True)
    print(f"wrote {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
