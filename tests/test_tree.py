"""The rules of the tree: imports go downward, nothing of a package index or a machine is in it."""

import ast
import json
import os
import re
from pathlib import Path

import pytest
from tests.fresh import committed_files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "legation"

# A part may import from every lower level, and the core (level 0) from itself.
LEVELS = {
    **dict.fromkeys(("errors", "ids", "clock", "tasks", "secret", "redact", "settings"), 0),
    "wire": 1,
    **dict.fromkeys(("store", "proc"), 2),
    **dict.fromkeys(("sandbox", "agents", "approvals"), 3),
    **dict.fromkeys(("host", "gateway"), 4),
    **dict.fromkeys(("runner", "runs"), 5),
    "server": 6,
    "cli": 7,
    "__main__": 8,
}
CORE = {part for part, level in LEVELS.items() if level == 0}
# Outsiders: what they may see is listed, whatever its level.
OUTSIDERS = {
    "client": CORE | {"wire"},
    "supervisor": CORE | {"wire", "client"},
    "testing": CORE | {"wire", "store", "client", "proc"},
}


def imports(path: Path) -> set[str]:
    """The parts of Legation that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "legation" else [module]
        found |= {name.split(".")[1] for name in names if name.startswith("legation.")}
    return found & (LEVELS.keys() | OUTSIDERS.keys())


def breaches(path: Path) -> set[str]:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    others = imports(path) - {part}
    if part in OUTSIDERS:
        return others - OUTSIDERS[part]
    if part == "cli":
        others -= {"client"}  # it speaks to a server as any other program would
    level = LEVELS[part]
    allowed = {other for other, its in LEVELS.items() if its < level or its == level == 0}
    return others - allowed


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_go_downward(path: Path) -> None:
    assert breaches(path) == set()


def test_every_part_has_a_level() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert parts <= LEVELS.keys() | OUTSIDERS.keys()


def test_a_breach_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_tree.SOURCE", tmp_path)
    (tmp_path / "wire").mkdir()
    upward = tmp_path / "wire" / "bad.py"
    upward.write_text("def f():\n    from legation.store import log\n")
    assert breaches(upward) == {"store"}


# How a loop is given a descriptor, and who else may: the only other one is a loop that a test makes up.
HANDS_OVER = re.compile(r"(?:connect_(?:read|write)_pipe|connect_accepted_socket)")
MAY_HAND_OVER = {"src/legation/proc/lines.py", "tests/proc/test_pipes.py"}


def hands_over(path: Path) -> bool:
    names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    return any(HANDS_OVER.fullmatch(name) for name in names)


def test_one_function_alone_gives_descriptors_to_a_loop() -> None:
    tree = (
        ROOT / "src",
        ROOT / "tests",
    )  # the programs of `bench` hand over their own stdin, and end with it
    modules = [path for folder in tree for path in folder.rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in modules if hands_over(path)}
    assert found - MAY_HAND_OVER == set(), "use legation.proc.lines.hand_over"


def test_processes_are_started_by_a_launcher_and_not_by_a_loop() -> None:
    """A loop's own subprocesses have pipes that nobody of us hands over."""
    found = [
        path for path in MODULES if re.search(r"\b(?:create_)?subprocess_(?:exec|shell)\(", path.read_text())
    ]
    assert found == []


def committed() -> list[Path]:
    paths = [ROOT / name for name in committed_files()]
    return [path for path in paths if path.is_file()]


def index_hosts() -> set[str]:
    """The public indexes, and whatever this machine is set up with."""
    hosts = {"pypi" + ".org", "pythonhosted" + ".org", "registry.npmjs" + ".org"}
    configured = [
        value for name, value in os.environ.items() if re.search("(?i)index|registry|find_links", name)
    ]
    for file in (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf", Path.home() / ".npmrc"):
        if file.is_file():
            configured.append(file.read_text())
    for value in configured:
        hosts |= set(re.findall(r"https?://(?:[^/@\s]*@)?([\w.-]+)", value))
    return hosts - {"127.0.0.1", "localhost"}


def test_no_committed_file_names_a_package_index() -> None:
    hosts = index_hosts()
    for path in committed():
        text = path.read_text(errors="replace")
        named = {host for host in hosts if host in text}
        assert not named, f"{path.relative_to(ROOT)} names a package index"


def test_requirements_hold_hashes_and_no_addresses() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "://" not in text, path
        pinned = re.findall(r"^[\w.-]+(?:\[[\w,-]+\])?==", text, re.MULTILINE)
        assert pinned
        assert text.count("--hash=sha256:") >= len(pinned), path


def test_npm_locks_hold_integrity_and_no_addresses() -> None:
    for path in committed():
        if path.name != "package-lock.json":
            continue
        packages = json.loads(path.read_text())["packages"]
        for name, package in packages.items():
            assert "resolved" not in package, f"{path}: {name}"
            assert not name or package.get("link") or "integrity" in package, f"{path}: {name}"


def test_no_committed_file_names_a_path_of_a_machine() -> None:
    machine = re.compile(
        rb"(?:^|[\s\"'=(:])/(?:" + b"|".join((b"work", b"farm", b"root")) + rb")/[a-z]", re.MULTILINE
    )
    for path in committed():
        assert not machine.search(path.read_bytes()), path.relative_to(ROOT)


# Inside the server, the faces stand on the sessions: `routes` may import `acp`, and that `sessions`, and never the other way.
FACES = {"sessions": ("acp", "surfaces"), "acp": ("surfaces",)}


def test_the_sessions_of_a_server_know_nothing_of_their_faces() -> None:
    for part, above in FACES.items():
        for path in sorted((SOURCE / "server" / part).glob("*.py")):
            for name in above:
                assert f"legation.server.{name}" not in path.read_text(), path
