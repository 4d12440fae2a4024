from __future__ import annotations

import os
from pathlib import Path

from legation.proc import child_environment

CANARIES = {
    "ANTHROPIC_API_KEY": "canary",
    "OPENAI_API_KEY": "canary",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "GITHUB_TOKEN": "canary",
    "HTTPS_PROXY": "http://canary",
    "http_proxy": "http://canary",
    "SSH_AUTH_SOCK": "/canary",
    "LEGATION_CHILD": "canary",
    "LD_PRELOAD": "/canary.so",
    "NODE_OPTIONS": "--require canary",
    "PYTHONPATH": "/canary",
    "XDG_CONFIG_HOME": "/canary",
    "HOME": "/home/canary",
    "TMPDIR": "/canary",
}
HOME, TMP = Path("/somewhere/home"), Path("/somewhere/tmp")


def test_only_names_of_the_allow_list_come_through() -> None:
    base = {**CANARIES, "PATH": "/bin", "LANG": "C.UTF-8", "LC_TIME": "C", "TZ": "UTC", "TERM": "dumb"}
    environment = child_environment({}, home=HOME, tmp=TMP, base=base)
    assert environment == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "TZ": "UTC",
        "TERM": "dumb",
        "HOME": str(HOME),
        "TMPDIR": str(TMP),
    }


def test_what_is_passed_comes_through_but_never_another_home() -> None:
    passed = {"ANTHROPIC_API_KEY": "meant", "HOME": "/home/canary", "PATH": "/opt/bin"}
    environment = child_environment(passed, home=HOME, tmp=TMP, base=CANARIES)
    expected = {"ANTHROPIC_API_KEY": "meant", "PATH": "/opt/bin", "HOME": str(HOME), "TMPDIR": str(TMP)}
    assert environment == expected


def test_a_child_always_finds_programs() -> None:
    assert child_environment({}, home=HOME, tmp=TMP, base={})["PATH"] == os.defpath
