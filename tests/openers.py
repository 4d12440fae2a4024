"""Where the source opens files and folders, changes names, or starts a program in a folder: found in the syntax, whether it
is called there or handed to somebody who calls it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# What is about files by its name alone, whatever it is asked of.
_METHODS = frozenset(
    [
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "iterdir",
        "glob",
        "rglob",
        "scandir",
        "listdir",
        "fwalk",
        "rmtree",
        "copytree",
        "copyfile",
        "copyfileobj",
        "copy2",
        "mkdir",
        "makedirs",
        "rmdir",
        "removedirs",
        "unlink",
        "rename",
        "renames",
        "symlink_to",
        "hardlink_to",
        "realpath",
        "ftruncate",
        "fdopen",
        "sendfile",
        "copy_file_range",
        "mkstemp",
        "mkdtemp",
        "TemporaryDirectory",
        "NamedTemporaryFile",
        "TemporaryFile",
        "SpooledTemporaryFile",
        "FileResponse",
        "StaticFiles",
        "Popen",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "open_unix_connection",
        "connect_read_pipe",
        "connect_write_pipe",
    ]
)
# What has a common name is about files when it is asked of one of these.
_MODULES = {
    "os": frozenset(
        [
            "open",
            "walk",
            "remove",
            "replace",
            "link",
            "symlink",
            "popen",
            "chdir",
            "posix_spawn",
            "execv",
            "execve",
            "mkfifo",
            "truncate",
        ]
    ),
    "shutil": frozenset({"copy", "move", "make_archive", "unpack_archive"}),
    "subprocess": frozenset({"run", "call", "check_call", "check_output"}),
    **dict.fromkeys(("io", "gzip", "bz2", "lzma", "tarfile", "zipfile", "codecs"), frozenset({"open"})),
    "sqlite3": frozenset({"connect"}),
    "mmap": frozenset({"mmap"}),
}
_ANYWHERE = frozenset({"open"})  # the builtin
# Of proc, what is to be started, with the folder; of the store, a folder in a folder.
_OURS = frozenset({"Command", "open_below"})
_MODE = re.compile(r"[rwaxbt+]{1,4}")


def openers(source: Path) -> set[str]:
    """The functions and methods of a module that open something; what is outside of them is `<module>`."""
    tree = ast.parse(source.read_text())
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return set(_found(tree, "<module>", imported))


def _found(node: ast.AST, where: str, imported: dict[str, str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = child.name if where == "<module>" else f"{where}.{child.name}"
        if _opens(child, imported):
            yield where
        yield from _found(child, inside, imported)


def _opens(node: ast.AST, imported: dict[str, str]) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        asked = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr in _METHODS or node.attr in _MODULES.get(asked, ())
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        module, _, name = imported.get(node.id, "").rpartition(".")
        known = name in _METHODS or name in _MODULES.get(module, ())
        return known or (node.id in _ANYWHERE and node.id not in imported)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _OURS:
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            given = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
            return any(isinstance(each, ast.Constant) and _is_mode(each.value) for each in given)
    return False


def _is_mode(value: object) -> bool:
    return isinstance(value, str) and _MODE.fullmatch(value) is not None
