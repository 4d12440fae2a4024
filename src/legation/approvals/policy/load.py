"""Policies from a file or a folder: all of them, or an error that lists all that is wrong.

A folder is its `*.yaml` and `*.yml` files in the order of their names; hidden files and folders in it are left
alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from legation.approvals.policy.document import Node, read_documents
from legation.approvals.policy.examples import check_examples
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.problems import Problems, shown
from legation.approvals.policy.read_policy import read_policy
from legation.approvals.policy.rule import Policy
from legation.approvals.policy.source import Source

MAX_BYTES: Final = 1024 * 1024  # of one file
MAX_FILES: Final = 1000
MAX_RULES: Final = 10_000
_SUFFIXES: Final = (".yaml", ".yml")


def load(*paths: Path) -> PolicySet:
    """Raises ConfigInvalid with every problem; its `data` has them as a list."""
    problems = Problems()
    texts = [
        (str(file), text)
        for path in paths
        for file in files_of(path, problems)
        if (text := _read(file, problems)) is not None
    ]
    return _compile(texts, problems)


def load_text(text: str, name: str = "policy") -> PolicySet:
    return _compile([(name, text)], Problems())


def files_of(path: Path, problems: Problems) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as error:
        problems.add(str(path), 0, f"cannot be read: {error.strerror}; correct its permissions")
        return []
    files = [path / name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]
    files = [file for file in files if not file.is_dir()]
    if not files:
        problems.add(str(path), 0, "no policies; put a .yaml file there, `legation policy init` writes one")
    if len(files) > MAX_FILES:
        problems.add(str(path), 0, f"more than {MAX_FILES} files; put several policies into one")
    return files[:MAX_FILES]


def _read(file: Path, problems: Problems) -> str | None:
    try:
        # Without waiting: a pipe that was put in its place must not hold us.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                problems.add(str(file), 0, "not a regular file; put the policies into one")
                return None
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        problems.add(
            str(file), 0, f"cannot be read: {error.strerror}; put it back, or correct its permissions"
        )
        return None
    if len(content) > MAX_BYTES:
        problems.add(str(file), 0, f"larger than {MAX_BYTES // 1024} KiB; split it into several files")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(str(file), line, "not UTF-8 text; save it as such")
        return None


def _compile(texts: list[tuple[str, str]], problems: Problems) -> PolicySet:
    policies: list[Policy] = []
    content: list[object] = []
    names: dict[str, str] = {}
    for file, text in texts:
        source = Source(file, problems)
        for node in _policy_nodes(source, text):
            policy = read_policy(source, node)
            if policy is None:
                continue
            if policy.name in names:
                source.report(
                    node.line,
                    f"the name {shown(policy.name)} is that of the policy at {names[policy.name]}; write another",
                )
            names[policy.name] = policy.place
            check_examples(source, node, policy)
            policies.append(policy)
            content.append(node.plain())
    if sum(len(policy.rules) for policy in policies) > MAX_RULES:
        problems.add(texts[-1][0], 0, f"more than {MAX_RULES} rules in all; write fewer")
    problems.raise_if_any()
    return PolicySet(policies, content)


def _policy_nodes(source: Source, text: str) -> list[Node]:
    """One policy a document, or several under `policies:`."""
    before = len(source.problems.found)
    documents = read_documents(text, source.report)
    if not documents and len(source.problems.found) == before:
        source.report(1, "no policy in it; `legation policy init` writes one")
    found: list[Node] = []
    for node in documents:
        if isinstance(node.value, dict) and "policies" in node.value:
            parts = source.map(node, "a file with `policies`", ("policies",))
            found += source.items(parts["policies"], "`policies`")
        else:
            found.append(node)
    return found
