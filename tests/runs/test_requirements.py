"""The table of requirements beside this file: each test that it names is there, and each id stands in it once."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("README.md").read_text()
RANGES = {"GOAL": 9, "NON": 9, "DEC": 26, "TBL": 21, "SEC": 20, "LIFE": 20, "STATE": 3}


def test_every_test_that_it_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", TABLE)
    assert len(named) > 80
    for path, function in named:
        if (
            path.startswith(("runs/submit", "runs/steps", "runs/run.", "runs/sandbox", "runner/faults"))
            or path == "lists.py"
        ):
            continue  # of the source
        text = (TESTS / path).read_text()
        assert f"def {function}(" in text or not function, (path, function)


def test_every_requirement_stands_in_it() -> None:
    first = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| ")]
    said = set(re.findall(r"(?<!-)\b[A-Z]+-\d+", " ".join(first)))
    said |= {f"TBL-{number:02}" for number in range(8, 13)}  # written as a range
    assert {f"{kind}-{number:02}" for kind, most in RANGES.items() for number in range(1, most + 1)} <= said
