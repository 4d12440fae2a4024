"""What was resolved where an agent is, as far as it can be checked without that machine."""

import msgspec
import pytest

from legation.errors import InvalidParams
from legation.wire.resolved import MAX_FOLDERS, ResolvedPaths

PATHS = ("/w/a", "/w/link")
GOOD = ResolvedPaths(
    workspace="/w",
    cwd="/w/src",
    home="/home/you",
    paths=("/w/a", None),
    folders={"/w": "/mnt/w", "/w/src": "/mnt/w/src", "/home/you": "/home/you", "/gone": None},
)


def test_a_good_one_is_taken_and_comes_back_from_json() -> None:
    GOOD.check(PATHS)
    assert msgspec.json.decode(msgspec.json.encode(GOOD), type=ResolvedPaths) == GOOD


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"paths": ("/w/a",)}, r"\$\.resolved\.paths "),
        ({"paths": ("/w/a", None, None)}, r"\$\.resolved\.paths "),
        ({"paths": ("w/a", None)}, r"\$\.resolved\.paths\[0\]"),
        ({"paths": ("/w/a", "/w/../etc")}, r"\$\.resolved\.paths\[1\]"),
        ({"paths": ("/w/./a", None)}, r"paths\[0\]"),
        ({"paths": ("//w/a", None)}, r"paths\[0\]"),
        ({"paths": ("/w//a", None)}, r"paths\[0\]"),
        ({"paths": ("/w/a/", None)}, r"paths\[0\]"),
        ({"paths": ("/w/a\0", None)}, r"paths\[0\]"),
        ({"paths": ("", None)}, r"paths\[0\]"),
        ({"paths": ("/" + "a" * 4096, None)}, r"paths\[0\]"),
        ({"workspace": "w"}, r"workspace"),
        ({"workspace": "/"}, r"workspace is not a folder other than the root"),
        ({"folders": {"/w": "/"}}, r"workspace is not a folder other than the root"),
        ({"cwd": "."}, r"cwd"),
        ({"home": "~"}, r"home"),
        ({"folders": {"w": "/w"}}, r"folders"),
        ({"folders": {"/w": "w"}}, r"folders"),
        ({"folders": {"/w/a": "/elsewhere"}}, r"folders is not the same place"),
        ({"folders": {f"/{number}": None for number in range(MAX_FOLDERS + 1)}}, r"folders is not at most"),
        ({"folders": {f"/{number}" + "a" * 4000: None for number in range(100)}}, r"at most \d+ characters"),
    ],
)
def test_what_nobody_could_have_found_on_a_disk_is_refused(change: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidParams, match=f"^cannot use what was resolved where the agent is: .*{where}"):
        msgspec.structs.replace(GOOD, **change).check(PATHS)
