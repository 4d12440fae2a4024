import re
import subprocess
import sys
from pathlib import Path

import pytest

from legation.testing import model

WAIT = 30.0  # the test's patience, in seconds
PAGES = Path(__file__).parents[3] / "docs" / "reference"
PAGE = PAGES / "scripted-model.md"


@pytest.mark.parametrize(
    ("page", "what"), [("scripted-model.md", "ScriptedModel"), ("recordings.md", "Recorder")]
)
def test_the_first_example_of_the_page_runs(page: str, what: str) -> None:
    example = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)[0]
    assert what in example
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", sorted(set(model.__all__) - {"Message", "HttpAnswer", "HttpRequest", "Script"})
)
def test_the_page_names_what_is_public(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE.read_text())
