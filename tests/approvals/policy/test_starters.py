"""The policies that ship: each is good by itself, and does what its first line says."""

from pathlib import Path
from typing import Any

import pytest
from tests.approvals.policy.rules import decide

from legation.approvals.policy.load import load_text, starter, starters
from legation.errors import NotFound

CALLS: dict[str, str | dict[str, Any]] = {
    "read": "read src/a.py",
    "secret": "read ~/.ssh/id_rsa",
    "outside": "read /etc/shadow",
    "edit": "edit src/a.py",
    "profile": "edit ~/.bashrc",
    "test": "$ pytest -q",
    "push": "$ git push",
    "hidden": "$ eval x",
    "web": "fetch https://evil.example.org/",
    "tool": "github.merge number=4",
    "think": {"kind": "think"},
}
EXPECTED = {
    "careful": "read=allow secret=deny outside=deny edit=supervisor profile=deny test=human_approval push=human_approval "
    "hidden=human_approval web=human_approval tool=human_approval think=allow",
    "overnight": "read=allow secret=deny outside=deny edit=allow profile=deny test=allow push=deny hidden=deny "
    "web=supervisor tool=supervisor think=allow",
    "read-only": "read=allow secret=deny outside=deny edit=deny profile=deny test=deny push=deny hidden=deny web=deny "
    "tool=deny think=allow",
    "yolo-in-jail": "read=allow secret=allow outside=allow edit=allow profile=allow test=allow push=supervisor "
    "hidden=supervisor web=supervisor tool=allow think=allow",
}


def test_all_that_ship_are_known_here() -> None:
    assert [each.name for each in starters()] == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_starter_decides_as_it_says(name: str) -> None:
    policies = load_text(starter(name).text)
    found = " ".join(f"{key}={decide(policies, call).action}" for key, call in CALLS.items())
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_starter_has_examples_for_every_rule_that_needs_them(name: str) -> None:
    shipped = starter(name)
    assert shipped.summary.endswith(".")
    assert shipped.text.count("match:") >= 3


def test_an_unknown_starter_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'careful'"):
        starter("carefull")


def test_every_example_of_the_page_is_good() -> None:
    """docs/policy.md: every YAML block in it is a policy that loads, or rules of one."""
    text = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    blocks = [block.split("```", 1)[0] for block in text.split("```yaml\n")[1:]]
    assert len(blocks) >= 4
    for block in blocks:
        load_text(block if block.startswith(("name:", "policies:")) else f"name: p\nrules:\n{block}")
