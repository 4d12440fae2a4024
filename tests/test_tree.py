"""The rules of the tree, which stand in `tools/rules.py`. What of them is not kept yet is counted here."""

from collections import Counter

from tools.rules import breaches, report

# Issue 17 brings each to nothing, and then this table goes. Lower a number whenever you can.
NOT_YET = {
    "class_names_occur_once": 1,
}


def test_the_tree_keeps_its_rules() -> None:
    found = breaches()
    count = Counter(breach.rule for breach in found)
    too_many = {rule for rule in count if count[rule] > NOT_YET.get(rule, 0)}
    assert not too_many, "\n" + report(breach for breach in found if breach.rule in too_many)
