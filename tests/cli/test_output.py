import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from legation.cli.command import Console, line, plain


def test_control_sequences_are_made_visible() -> None:
    assert plain("a\x1b[2Jb\x07\r\x9b1m") == "a\\x1b[2Jb\\x07\\x0d\\x9b1m"
    assert plain("two\nlines\tand a tab") == "two\nlines\tand a tab"
    assert plain("safe\u202etxt.exe") == "safe\\x202etxt.exe"


@given(st.text(alphabet=st.characters()))
def test_nothing_that_steers_a_terminal_gets_through(text: str) -> None:
    for character in plain(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")


def test_a_line_is_one_line() -> None:
    assert line(" a\n\nb\t c ") == "a b c"


def test_colour_only_where_asked() -> None:
    coloured, bare = io.StringIO(), io.StringIO()
    Console(coloured, colour=True).say("x", "red")
    Console(bare).say("x", "red")
    assert (coloured.getvalue(), bare.getvalue()) == ("\x1b[31mx\x1b[0m\n", "x\n")
