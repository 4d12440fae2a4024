"""The rules of the tree, which stand in `tools/rules.py`, are kept. Each finds its breach: `tests/tools/test_rules.py`."""

from tools.rules import breaches, report


def test_the_tree_keeps_its_rules() -> None:
    found = breaches()
    assert not found, f"\n{report(found)}"
