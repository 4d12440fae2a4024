"""The rules of the tree, all in this place: `python -m tools.rules` prints every breach, and so does `./dev check`.

The tree is read, never imported, so that a copy of it can be looked at as well: `python -m tools.rules FOLDER`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]

# A part may import from every lower level, and the core (level 0) from itself.
LEVELS: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("errors", "clock", "secret", "redact", "states", "tasks", "settings", "setting_values"), 0
    ),
    "wire": 1,
    **dict.fromkeys(("store", "proc"), 2),
    **dict.fromkeys(("sandbox", "agents", "approvals"), 3),
    **dict.fromkeys(("host", "gateway"), 4),
    **dict.fromkeys(("runner", "runs"), 5),
    "server": 6,
    "cli": 7,
    "__main__": 8,
}
CORE: Final = {part for part, level in LEVELS.items() if level == 0}
# Outsiders: what they may see is listed, whatever its level.
OUTSIDERS: Final = {
    "client": CORE | {"wire"},
    "supervisor": CORE | {"wire", "client"},
    "testing": CORE | {"wire", "store", "client", "proc"},
}
# A command speaks to a server as any other program would.
ALSO: Final = {"cli": {"client"}}

# Inside a package: its modules and folders, lowest first. Each may import from the rows above its own. Types alone, under
# TYPE_CHECKING, do not count here: they load nothing.
INSIDE: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "wire": (
        ("jsontext", "principal", "resolved"),
        ("events", "acp"),
        ("action", "api"),
        ("event_types", "snapshot", "callbacks"),
        ("universal",),
    ),
    "store": (
        ("datafolder", "codec"),
        ("entries",),
        ("files", "forbidden", "stream"),
        ("log", "digest", "jsonl", "database", "trust"),
        ("secrets", "sqlite"),
        ("audit", "counters", "blobs", "backup", "sizes"),
        ("identity",),
    ),
    "server": (
        ("address", "logs", "installation"),
        ("http", "requirements"),
        ("auth",),
        ("peers",),
        ("inbox",),
        ("fs", "streaming", "sessions"),
        ("processes", "acp", "retention", "forward"),
        ("routes", "mesh", "instance"),
        ("worker",),
        ("run",),
    ),
}
# The faces of the server stand on its sessions, and its sessions know nothing of them, not even types.
FACES: Final = {
    "server/sessions": ("server/acp", "server/routes"),
    "server/acp": ("server/routes",),
}

LONGEST: Final = 700  # lines of a module: more is not read in one sitting
SHORTEST: Final = 100  # lines; a shorter one needs two importers, or stands below
MOST_FILES: Final = 16  # of a folder
MOST_TOUCHED: Final = 4  # files, to add one thing
# One file per noun of the command, and per resource of the API: short or many as they are.
BY_NOUN: Final = ("cli", "server/routes")
# Short modules with one importer or none that are not loaded late by a function, and why each is a file of its own.
SHORT: Final[Mapping[str, str]] = {
    "agents/amp/gate_delegate": "a program of its own: Amp runs it",
    "server/processes/trampoline": "a program of its own: it becomes the process that was asked for",
    "server/processes/websocket_protocol": "uvicorn loads it by its name, and only where there are WebSockets",
    "testing/clock": "shipped for the tests of others",
}

# Names and texts that users, protocols, events and error codes have: the same thing may be called so in several of them, and
# what describes it stays.
PUBLISHED: Final = re.compile(r"wire/.+|errors|testing/.+|agents/\w+/messages|server/http/openapi")

NOT_FIRST: Final = re.compile(
    r"(?:of|that|what(?:ever)?|who(?:ever|m|se)?|how(?:ever)?|where(?:ver)?|when(?:ever)?|why|which(?:ever)?)\b",
    re.IGNORECASE,
)
GERUND: Final = re.compile(r"\w*ing")
# Words that name a thing in the field, though they end as a gerund does.
NOUNS: Final = re.compile(r"testing|streaming|(?:\w+_)?listing|\w*string|\w*setting")
METAPHOR: Final = re.compile(
    r"vigil|passage|desk|seat|shelf|outlet|lane|errands?|facade|habits|elsewhere|leftover|takeup|unanswered|unsettled"
    r"|surroundings|surfaces|left_out"
)

# How a loop is given a descriptor, and who may: one function of ours, and a loop that a test makes up.
HANDS_OVER: Final = re.compile(r"connect_(?:read|write)_pipe|connect_accepted_socket")
MAY_HAND_OVER: Final = ("src/legation/proc/lines.py", "tests/proc/test_pipes.py")
STARTS: Final = re.compile(r"\b(?:create_)?subprocess_(?:exec|shell)\(")

_NOT_OURS: Final = {".git", ".hypothesis", ".venv", ".agents", "__pycache__", "node_modules", "dist"}


@dataclass(frozen=True, slots=True)
class Breach:
    """A place that does not keep a rule."""

    rule: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


class Statement(NamedTuple):
    node: ast.stmt | ast.Module
    late: bool = False  # in a function
    typing: bool = False  # under TYPE_CHECKING


@dataclass(frozen=True)
class Module:
    """A module of the package. Its name is its path below `src/legation`, without `.py` or `/__init__.py`."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def statements(self) -> list[Statement]:
        """Every statement, at any depth. What rules ask for are statements, and expressions are most of a tree."""
        return list(_statements(self.tree))

    @cached_property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_special(self) -> bool:
        return self.path.name in ("__init__.py", "__main__.py")


@dataclass
class Tree:
    """The files below a root, read once."""

    root: Path
    modules: dict[str, Module] = field(init=False)

    def __post_init__(self) -> None:
        source = self.root / "src" / "legation"
        found = (Module(_name(path, source), path, path.read_text()) for path in sorted(source.rglob("*.py")))
        self.modules = {module.name: module for module in found}

    @cached_property
    def imports(self) -> dict[str, frozenset[str]]:
        """The modules of the package that each imports, wherever in it."""
        return self._imports(lambda _: True)

    @cached_property
    def loads(self) -> dict[str, frozenset[str]]:
        """The same without those under `TYPE_CHECKING`."""
        return self._imports(lambda statement: not statement.typing)

    @cached_property
    def loads_first(self) -> dict[str, frozenset[str]]:
        """The same without those of functions: what is loaded before the module itself is."""
        return self._imports(lambda statement: not statement.typing and not statement.late)

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for other in imported:
                found[other].add(name)
        return found

    @cached_property
    def committed(self) -> dict[str, bytes]:
        return {
            name: (self.root / name).read_bytes()
            for name in committed_files(self.root)
            if (self.root / name).is_file()
        }

    def shown(self, module: Module) -> str:
        return str(module.path.relative_to(self.root))

    def _imports(self, counts: Callable[[Statement], bool]) -> dict[str, frozenset[str]]:
        found = {}
        for name, module in self.modules.items():
            nodes = (statement.node for statement in module.statements if counts(statement))
            dotted = [each for node in nodes for each in _dotted(node)]
            found[name] = frozenset(map(self._module, dotted)) - {"", name}
        return found

    def _module(self, dotted: str) -> str:
        """The module that a dotted name is of, or that it is; "" where it is none of the package."""
        package, _, rest = dotted.partition(".")
        if package != "legation":
            return ""
        found = rest.replace(".", "/")
        while found and found not in self.modules:
            found = found.rpartition("/")[0]
        return found


def _name(path: Path, source: Path) -> str:
    found = path.relative_to(source).with_suffix("").as_posix()
    return found.removesuffix("/__init__") if found != "__init__" else ""


def _statements(node: ast.AST, *, late: bool = False, typing: bool = False) -> Iterator[Statement]:
    if isinstance(node, ast.stmt | ast.Module):
        yield Statement(node, late, typing)
    late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    typing = typing or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, name, ())
        for each in below if isinstance(below, list) else ():
            yield from _statements(each, late=late, typing=typing)


def _dotted(node: ast.AST) -> list[str]:
    """Name what a statement imports, in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def committed_files(root: Path) -> list[str]:
    """List what git has or would take; in a tree without git, whatever is no one's leavings."""
    if shutil.which("git") is None or not (root / ".git").exists():
        paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return [
            str(path) for path in paths if not _NOT_OURS & set(path.parts) and "_cache" not in path.parts[0]
        ]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


Found = Iterator[tuple[str, str]]  # the place, and what is wrong there


# Imports.


def imports_go_downward(tree: Tree) -> Found:
    for name, module in tree.modules.items():
        if any(isinstance(node, ast.ImportFrom) and node.level for node, *_ in module.statements):
            yield tree.shown(module), "a relative import; name the module in full"
        if not name:
            continue  # the version
        part = module.part
        if part not in LEVELS.keys() | OUTSIDERS.keys():
            yield tree.shown(module), f"the part {part} has no level; give it one in tools/rules.py"
            continue
        others = {other.partition("/")[0] for other in tree.imports[name]} - {part}
        for other in sorted(others - _may_import(part)):
            yield tree.shown(module), f"imports {other}, which is not below {part}"


def _may_import(part: str) -> set[str]:
    if part in OUTSIDERS:
        return set(OUTSIDERS[part])
    level = LEVELS[part]
    below = {other for other, its in LEVELS.items() if its < level or its == level == 0}
    return below | ALSO.get(part, set())


def imports_go_downward_inside(tree: Tree) -> Found:
    for package, rows in INSIDE.items():
        level = {member: number for number, row in enumerate(rows) for member in row}
        for name, module in tree.modules.items():
            if module.part != package or name == package:
                continue
            member = _member(name)
            if member not in level:
                yield (
                    tree.shown(module),
                    f"{member} has no level inside {package}; give it one in tools/rules.py",
                )
                continue
            others = [other for other in sorted(tree.loads[name]) if other.startswith(f"{package}/")]
            for other in others:
                if _member(other) != member and level.get(_member(other), -1) >= level[member]:
                    yield tree.shown(module), f"imports {other}, which is not below {package}/{member}"
        for member in level:
            if f"{package}/{member}" not in tree.modules:
                yield "tools/rules.py", f"{package}/{member} has a level and does not exist"


def _member(name: str) -> str:
    return name.split("/")[1]


def faces_stand_on_the_sessions(tree: Tree) -> Found:
    for below, above in FACES.items():
        for name, module in tree.modules.items():
            if name.startswith(f"{below}/"):
                for other in sorted(tree.imports[name]):
                    if other.startswith(above):
                        yield tree.shown(module), f"imports {other}, a face of it"


def nothing_loads_itself(tree: Tree) -> Found:
    """A cycle among what is imported at the top of modules: it works in one order only, if in any."""
    done: set[str] = set()
    way: list[str] = []

    def look(name: str) -> Found:
        if name in way:
            yield (
                tree.shown(tree.modules[name]),
                f"loads itself: {' -> '.join([*way[way.index(name) :], name])}",
            )
            return
        if name in done or name not in tree.modules:
            return
        way.append(name)
        for other in sorted(tree.loads_first[name]):
            yield from look(other)
        way.pop()
        done.add(name)

    for name in tree.modules:
        yield from look(name)


# Modules and folders.


def modules_are_read_in_one_sitting(tree: Tree) -> Found:
    for module in tree.modules.values():
        if module.lines > LONGEST:
            yield tree.shown(module), f"{module.lines} lines; cut it where a reader would turn the page"


def short_modules_have_a_reason(tree: Tree) -> Found:
    for name, module in tree.modules.items():
        folder = name.rpartition("/")[0]
        if module.lines >= SHORTEST or module.is_special or not folder or folder in BY_NOUN or name in SHORT:
            continue
        importers = tree.importers[name]
        loads_late = importers and not any(name in tree.loads_first[importer] for importer in importers)
        if len(importers) < 2 and not loads_late:
            whose = f"only {', '.join(importers)}" if importers else "nobody"
            yield tree.shown(module), f"{module.lines} lines, and {whose} imports it; put it where it is used"


def folders_are_short(tree: Tree) -> Found:
    count = Counter(module.path.parent for module in tree.modules.values())
    for folder, files in sorted(count.items()):
        name = folder.relative_to(tree.root / "src" / "legation").as_posix()
        if files > MOST_FILES and name not in BY_NOUN:
            yield str(folder.relative_to(tree.root)), f"{files} modules; at most {MOST_FILES}"


def modules_have_names_of_the_field(tree: Tree) -> Found:
    for name, module in tree.modules.items():
        word = name.rpartition("/")[2]
        if GERUND.fullmatch(word) and not NOUNS.fullmatch(word):
            yield tree.shown(module), "a gerund; name the thing"
        if METAPHOR.fullmatch(word):
            yield tree.shown(module), "a metaphor; use the word of the field"


def class_names_occur_once(tree: Tree) -> Found:
    places: defaultdict[str, list[str]] = defaultdict(list)
    ours: Counter[str] = Counter()
    for module in tree.modules.values():
        for node, *_ in module.statements:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{tree.shown(module)}:{node.lineno}")
                ours[node.name] += not PUBLISHED.fullmatch(module.name)
    for name, found in sorted(places.items()):
        if len(found) > 1 and ours[name]:
            yield name, f"the name of {len(found)} classes: {', '.join(found)}"


_HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings_begin_with_a_verb_or_a_noun(tree: Tree) -> Found:
    for module in tree.modules.values():
        for node, *_ in module.statements:
            text = ast.get_docstring(node) if isinstance(node, _HAS_DOCSTRING) else None
            if text and NOT_FIRST.match(text) and not _is_published(module, node):
                line = getattr(node, "lineno", 1)
                yield f"{tree.shown(module)}:{line}", f'"{text.partition(chr(10))[0][:60]}"'


def _is_published(module: Module, node: ast.AST) -> bool:
    """Routes, shapes, event types and errors are described to users by their docstrings: those texts stay."""
    if isinstance(node, ast.ClassDef):
        return PUBLISHED.fullmatch(module.name) is not None
    decorators = getattr(node, "decorator_list", [])
    return any(re.match(r"\w*routes\.", ast.unparse(decorator)) for decorator in decorators)


# Descriptors and processes.


def one_module_gives_descriptors_to_a_loop(tree: Tree) -> Found:
    # The programs of `bench` hand over their own standard input, and end with it.
    for path in (path for folder in ("src", "tests") for path in sorted((tree.root / folder).rglob("*.py"))):
        text, shown = path.read_text(), str(path.relative_to(tree.root))
        if not HANDS_OVER.search(text) or shown in MAY_HAND_OVER:
            continue
        nodes = ast.walk(ast.parse(text))
        if any(isinstance(node, ast.Attribute) and HANDS_OVER.fullmatch(node.attr) for node in nodes):
            yield shown, "gives a descriptor to a loop; use legation.proc.lines.hand_over"


def processes_are_started_by_a_launcher(tree: Tree) -> Found:
    """A loop's own subprocesses have pipes that nobody of us hands over."""
    for module in tree.modules.values():
        if STARTS.search(module.text):
            yield tree.shown(module), "starts a process by the loop; use a launcher of legation.proc"


# What is committed.


def index_hosts() -> set[str]:
    """The public indexes, and whatever this machine is set up with."""
    hosts = {"pypi" + ".org", "pythonhosted" + ".org", "registry.npmjs" + ".org"}
    configured = [
        value for name, value in os.environ.items() if re.search("(?i)index|registry|find_links", name)
    ]
    files = (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf", Path.home() / ".npmrc")
    configured += [file.read_text() for file in files if file.is_file()]
    for value in configured:
        hosts |= set(re.findall(r"https?://(?:[^/@\s]*@)?([\w.-]+)", value))
    return hosts - {"127.0.0.1", "localhost"}


def no_file_names_a_package_index(tree: Tree) -> Found:
    hosts = [host.encode() for host in index_hosts()]
    for name, text in tree.committed.items():
        if any(host in text for host in hosts):
            yield name, "names a package index"


def no_file_names_a_path_of_a_machine(tree: Tree) -> Found:
    places = b"|".join((b"work", b"farm", b"root"))
    machine = re.compile(rb"(?:^|[\s\"'=(:])/(?:" + places + rb")/[a-z]", re.MULTILINE)
    for name, text in tree.committed.items():
        if machine.search(text):
            yield name, "names a path of a machine"


def requirements_hold_hashes_and_no_addresses(tree: Tree) -> Found:
    for path in sorted((tree.root / "requirements").glob("*.txt")):
        text, shown = path.read_text(), str(path.relative_to(tree.root))
        pinned = re.findall(r"^[\w.-]+(?:\[[\w,-]+\])?==", text, re.MULTILINE)
        if "://" in text:
            yield shown, "has an address"
        if not pinned or text.count("--hash=sha256:") < len(pinned):
            yield shown, "has a requirement without a hash, or none at all"


def npm_locks_hold_integrity_and_no_addresses(tree: Tree) -> Found:
    for shown, text in tree.committed.items():
        if shown.rpartition("/")[2] != "package-lock.json":
            continue
        for name, package in json.loads(text)["packages"].items():
            if "resolved" in package:
                yield shown, f"{name} has an address"
            if name and not package.get("link") and "integrity" not in package:
                yield shown, f"{name} has no integrity"


# What CONTRIBUTING.md says.


def contributing_shows_the_tree(tree: Tree) -> Found:
    text = (tree.root / "CONTRIBUTING.md").read_text()
    shown = {
        part.rstrip("/"): level
        for level, parts in re.findall(r"^\| (\d|-) \| ([^|]+) \|", text, re.MULTILINE)
        for part in re.findall(r"`([\w/]+)`", parts)
    }
    there = {module.part for module in tree.modules.values()} - {"", "__main__"}
    levels = {part: str(LEVELS.get(part, "-")) for part in there}
    for part in sorted(shown.keys() | levels.keys()):
        if part not in shown:
            yield "CONTRIBUTING.md", f"does not show {part} at level {levels[part]}"
        elif shown[part] != levels.get(part):
            where = f"where it is at {levels[part]}" if part in levels else "which is not there"
            yield "CONTRIBUTING.md", f"shows {part} at level {shown[part]}, {where}"
    for package, rows in INSIDE.items():
        row = f"| `{package}/` | {' < '.join(', '.join(members) for members in rows)} |"
        if row not in text:
            yield "CONTRIBUTING.md", f"does not have this row: {row}"


def contributing_names_files_that_exist(tree: Tree) -> Found:
    text = (tree.root / "CONTRIBUTING.md").read_text()
    for thing, paths in to_add(text).items():
        if len(paths) > MOST_TOUCHED:
            yield "CONTRIBUTING.md", f"{thing} touches {len(paths)} files; at most {MOST_TOUCHED}"
        for path in paths:
            if not any(tree.root.glob(re.sub(r"<\w+>", "*", path))):
                yield "CONTRIBUTING.md", f"{thing} touches {path}, which does not exist"


def to_add(text: str) -> dict[str, list[str]]:
    """Read the tables of CONTRIBUTING.md: for each thing the files to touch, from the root on."""
    rows = re.findall(r"^\| ([a-z][^|]+) \| ([^|]*`[^|]+) \|$", text, re.MULTILINE)
    return {
        thing: [_from_root(path) for path in re.findall(r"`([\w<>/.-]+\.\w+)`", files)]
        for thing, files in rows
    }


def _from_root(path: str) -> str:
    return path if path.startswith(("tests/", "docs/", "tools/")) else f"src/legation/{path}"


# Pages.


def links_lead_somewhere(tree: Tree) -> Found:
    for shown, text in tree.committed.items():
        if not shown.endswith(".md"):
            continue
        page = tree.root / shown
        for link in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", _without_code(text.decode())):
            path, _, anchor = link.partition("#")
            if "://" in link or path.startswith("mailto:"):
                continue
            target = page.parent / path if path else page
            if not target.exists():
                yield shown, f"links to {link}, which does not exist"
            elif anchor and anchor not in _anchors(target):
                yield shown, f"links to {link}, and there is no such heading"


def _anchors(page: Path) -> set[str]:
    text = _without_code(page.read_text())
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | {*named}


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


Rule = Callable[[Tree], Found]

RULES: Final[tuple[Rule, ...]] = (
    imports_go_downward,
    imports_go_downward_inside,
    faces_stand_on_the_sessions,
    nothing_loads_itself,
    modules_are_read_in_one_sitting,
    short_modules_have_a_reason,
    folders_are_short,
    modules_have_names_of_the_field,
    class_names_occur_once,
    docstrings_begin_with_a_verb_or_a_noun,
    one_module_gives_descriptors_to_a_loop,
    processes_are_started_by_a_launcher,
    no_file_names_a_package_index,
    no_file_names_a_path_of_a_machine,
    requirements_hold_hashes_and_no_addresses,
    npm_locks_hold_integrity_and_no_addresses,
    contributing_shows_the_tree,
    contributing_names_files_that_exist,
    links_lead_somewhere,
)


def breaches(root: Path = ROOT, rules: Iterable[Rule] = RULES) -> list[Breach]:
    tree = Tree(root)
    return [Breach(rule.__name__, place, what) for rule in rules for place, what in rule(tree)]


def report(found: Iterable[Breach]) -> str:
    """The breaches, by rule."""
    by_rule: defaultdict[str, list[Breach]] = defaultdict(list)
    for breach in found:
        by_rule[breach.rule].append(breach)
    return "\n".join(
        f"{rule.replace('_', ' ')}: {len(its)}\n" + "\n".join(f"  {breach}" for breach in its)
        for rule, its in by_rule.items()
    )


def main(argv: list[str]) -> None:
    found = breaches(Path(argv[0]) if argv else ROOT)
    if found:
        print(report(found))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
