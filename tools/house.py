"""The house in figures: `python -m tools.house [FOLDER ...]`, a column for each tree; without one, this tree.

`python -m tools.house OLD .` compares two; OLD is made with `git worktree add OLD COMMIT`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from statistics import median

from tools import rules


def figures(tree: rules.Tree) -> dict[str, float]:
    modules = list(tree.modules.values())
    lines = [module.lines for module in modules]
    folders = Counter(module.path.parent for module in modules)
    classes = Counter(
        node.name for module in modules for node, *_ in module.statements if isinstance(node, ast.ClassDef)
    )
    alone = [module for module in modules if not module.is_special and len(tree.importers[module.name]) == 1]
    comments = sum(line.lstrip().startswith("#") for module in modules for line in module.text.splitlines())
    return {
        "modules": len(modules),
        "lines": sum(lines),
        "of them neither imports, blank nor docstrings": sum(map(own_lines, modules)),
        "of them comments": comments,
        "median of a module": median(lines),
        "longest module": max(lines),
        f"modules below {rules.SHORTEST} lines": sum(count < rules.SHORTEST for count in lines),
        "modules with one importer": len(alone),
        f"folders of more than {rules.MOST_FILES}": sum(
            count > rules.MOST_FILES for count in folders.values()
        ),
        "class names that occur twice": sum(count > 1 for count in classes.values()),
        "docstrings that begin with a refused word": sum(
            1 for _ in rules.docstrings_begin_with_a_verb_or_a_noun(tree)
        ),
    }


def own_lines(module: rules.Module) -> int:
    """Count the lines that say something themselves: no imports, blank lines or docstrings."""
    left_out: set[int] = set()
    for node, *_ in module.statements:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and _is_text(node.value)
        ):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    text = module.text.splitlines()
    return sum(1 for number, line in enumerate(text, 1) if line.strip() and number not in left_out)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def main(folders: list[str]) -> None:
    columns = [figures(rules.Tree(Path(folder))) for folder in folders or [str(rules.ROOT)]]
    for name in columns[0]:
        print(f"{name:50}" + "".join(f"{column[name]:>10g}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
