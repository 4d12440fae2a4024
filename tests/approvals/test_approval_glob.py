"""The grammar that the OpenAPI document shows is the one that is served."""

import re

from hypothesis import given
from hypothesis import strategies as st

from legation.approvals.approval import LONGEST_PATTERN, WELL_FORMED, Glob
from legation.errors import InvalidParams


@given(st.text(alphabet="a[]^-\\*?/.é", min_size=1, max_size=12))
def test_a_pattern_is_well_formed_as_documented_or_refused(text: str) -> None:
    try:
        Glob(text)
        taken = True
    except InvalidParams:
        taken = False
    assert taken == (re.search(WELL_FORMED, text) is not None)


def test_the_documented_grammar_is_quick_to_refuse() -> None:
    assert re.search(WELL_FORMED, "a\x00b") is None
    assert re.search(WELL_FORMED, "[" + "a-" * 60_000) is None
    assert re.search(WELL_FORMED, "*?" * LONGEST_PATTERN + "[") is None
