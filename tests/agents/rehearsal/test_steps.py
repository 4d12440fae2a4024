import ast
import sys
from pathlib import Path

from tools.rehearsal import page

import legation.agents.rehearsal
from legation.agents.rehearsal.steps import STEPS

ROOT = Path(__file__).parents[3]
PACKAGE = Path(legation.agents.rehearsal.__file__).parent


def test_the_reference_page_is_current() -> None:
    written = (ROOT / "docs" / "reference" / "rehearsal.md").read_text()
    remedy = "run `python -m tools.pages`"
    assert written == page(), remedy


def test_every_step_is_played_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    missing = [name for name in STEPS if f'"{name}' not in tests]
    assert missing == []


def test_the_package_imports_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"legation.agents.rehearsal"}
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                known = name.split(".")[0] in allowed or name.startswith("legation.agents.rehearsal")
                assert known, f"{path.name} imports {name}"
