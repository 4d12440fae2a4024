"""Each rule of the tree finds the breach that it is there for. That the tree keeps them is in `tests/test_tree.py`."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tools import rules

SRC = "src/legation"
LONG = "x = 1\n" * (rules.LONGEST + 1)
ENOUGH = "x = 1\n" * rules.SHORTEST


def broken(folder: Path, rule: rules.Rule, files: Mapping[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [f"{breach.place} {breach.what}" for breach in rules.breaches(folder, [rule])]


CASES: list[tuple[rules.Rule, Mapping[str, str], str]] = [
    (
        rules.imports_go_downward,
        {f"{SRC}/wire/bad.py": "def f():\n    from legation.store import log\n", f"{SRC}/store/log.py": ""},
        "imports store",
    ),
    (
        rules.imports_go_downward,
        {f"{SRC}/client/bad.py": "import legation.store.log\n", f"{SRC}/store/log.py": ""},
        "imports store",
    ),
    (rules.imports_go_downward, {f"{SRC}/wire/bad.py": "from . import codec\n"}, "relative"),
    (rules.imports_go_downward, {f"{SRC}/attic/bad.py": ""}, "attic has no level"),
    (
        rules.faces_stand_on_the_sessions,
        {
            f"{SRC}/server/sessions/bad.py": "if TYPE_CHECKING:\n    from legation.server.acp.x import X\n",
            f"{SRC}/server/acp/x.py": "",
        },
        "a face",
    ),
    (
        rules.nothing_loads_itself,
        {f"{SRC}/wire/a.py": "import legation.wire.b\n", f"{SRC}/wire/b.py": "from legation.wire import a\n"},
        "wire/a -> wire/b -> wire/a",
    ),
    (rules.modules_are_read_in_one_sitting, {f"{SRC}/wire/bad.py": LONG}, "701 lines"),
    (
        rules.short_modules_have_a_reason,
        {
            f"{SRC}/wire/bad.py": "x = 1\n",
            f"{SRC}/wire/late.py": "x = 1\n",
            f"{SRC}/wire/good.py": f"import legation.wire.bad\n{ENOUGH}\ndef f():\n    import legation.wire.late\n",
        },
        "wire/bad.py 1 lines, and only wire/good",
    ),
    (
        rules.folders_are_short,
        {f"{SRC}/wire/m{number}.py": "" for number in range(rules.MOST_FILES + 1)},
        "17 modules",
    ),
    (rules.modules_have_names_of_the_field, {f"{SRC}/wire/mending.py": ""}, "a gerund"),
    (rules.modules_have_names_of_the_field, {f"{SRC}/wire/vigil.py": ""}, "a metaphor"),
    (
        rules.class_names_occur_once,
        {
            f"{SRC}/wire/a.py": "class Twice: ...\nclass Fixed: ...\n",
            f"{SRC}/store/b.py": "\nclass Twice: ...\n",
            f"{SRC}/wire/c.py": "class Fixed: ...\n",
        },
        "Twice the name of 2 classes",
    ),
    (
        rules.docstrings_begin_with_a_verb_or_a_noun,
        {
            f"{SRC}/store/a.py": 'class A:\n    """Of a thing."""\n',
            f"{SRC}/wire/b.py": '@routes.get("/")\ndef a():\n    """Who asks."""\n',
        },
        'a.py:1 "Of a thing."',
    ),
    (
        rules.docstrings_begin_with_a_verb_or_a_noun,
        {f"{SRC}/wire/a.py": '"""Whoever reads this."""\n'},
        'a.py:1 "Whoever reads this."',
    ),
    (
        rules.one_module_gives_descriptors_to_a_loop,
        {f"{SRC}/wire/bad.py": "async def f(loop): await loop.connect_read_pipe(1, 2)\n"},
        "gives a descriptor",
    ),
    (
        rules.processes_are_started_by_a_launcher,
        {f"{SRC}/host/bad.py": "asyncio.create_subprocess_exec('x')\n"},
        "starts a process",
    ),
    (rules.no_file_names_a_package_index, {"a.txt": "https://pypi" + ".org/simple"}, "a package index"),
    (rules.no_file_names_a_path_of_a_machine, {"a.txt": "see /wo" + "rk/x"}, "a path of a machine"),
    (
        rules.requirements_hold_hashes_and_no_addresses,
        {"requirements/a.txt": "x==1\ny==2 --hash=sha256:0\n"},
        "without a hash",
    ),
    (
        rules.npm_locks_hold_integrity_and_no_addresses,
        {"package-lock.json": '{"packages":{"":{},"a":{"integrity":"x","resolved":"y"}}}'},
        "a has an address",
    ),
    (
        rules.contributing_names_files_that_exist,
        {
            "CONTRIBUTING.md": "| a thing | `wire/a.py`, `wire/<name>.py`, `docs/b.md` |\n",
            f"{SRC}/wire/a.py": "",
        },
        "a thing touches docs/b.md, which does not exist",
    ),
    (
        rules.contributing_names_files_that_exist,
        {"CONTRIBUTING.md": f"| a thing | {', '.join(['`clock.py`'] * 5)} |\n", f"{SRC}/clock.py": ""},
        "a thing touches 5 files",
    ),
    (
        rules.links_lead_somewhere,
        {"a.md": "# A b\n[x](b.md) [y](#a-b) [z](https://example.com/c)\n```\n[no](d.md)\n```\n"},
        "links to b.md, which does not exist",
    ),
    (rules.links_lead_somewhere, {"a.md": "# A\n[x](#b)\n"}, "links to #b, and there is no such heading"),
]


@pytest.mark.parametrize(("rule", "files", "told"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_breach_is_found(rule: rules.Rule, files: Mapping[str, str], told: str, tmp_path: Path) -> None:
    found = broken(tmp_path, rule, files)
    assert len(found) == 1, found
    assert told in found[0]


def test_a_breach_inside_a_package_is_found_and_so_is_a_level_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "INSIDE", {"wire": (("low", "gone"), ("high",))})
    files = {
        f"{SRC}/wire/low/a.py": "def f():\n    from legation.wire import high\n",
        f"{SRC}/wire/low/__init__.py": "if TYPE_CHECKING:\n    from legation.wire import high\n",
        f"{SRC}/wire/high.py": "import legation.wire.low.a\n",
        f"{SRC}/wire/new.py": "",
    }
    assert broken(tmp_path, rules.imports_go_downward_inside, files) == [
        f"{SRC}/wire/low/a.py imports wire/high, which is not below wire/low",
        f"{SRC}/wire/new.py new has no level inside wire; give it one in tools/rules.py",
        "tools/rules.py wire/gone has a level and does not exist",
    ]


def test_contributing_must_show_each_part_at_its_level_and_the_levels_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "INSIDE", {"wire": (("a", "b"), ("c",))})
    files = {
        "CONTRIBUTING.md": "| 0 | `tasks` `clock` | x |\n| 2 | `wire/` | x |\n| - | `client/` | x |\n",
        **{f"{SRC}/{name}.py": "" for name in ("tasks", "wire/a", "client/a", "store/a")},
    }
    told = broken(tmp_path, rules.contributing_shows_the_tree, files)
    assert [line.removeprefix("CONTRIBUTING.md ") for line in told] == [
        "shows clock at level 0, which is not there",
        "does not show store at level 2",
        "shows wire at level 2, where it is at 1",
        "does not have this row: | `wire/` | a, b < c |",
    ]


def test_every_rule_has_a_case() -> None:
    others = {rules.imports_go_downward_inside, rules.contributing_shows_the_tree}
    assert {case[0] for case in CASES} | others == set(rules.RULES)
