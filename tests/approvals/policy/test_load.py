"""Every mistake is found at once, with its line and the word that was probably meant."""

import os
from pathlib import Path

import pytest
from tests.approvals.policy.rules import decide

from legation.approvals.policy.load import MAX_BYTES, load, load_text
from legation.errors import ConfigInvalid

RULE = "name: p\nrules:\n- action: allow\n"

BROKEN: list[tuple[str, list[str]]] = [
    ("name: p\nrules:\n- action: denny\n", ["f:3: unknown action 'denny'; did you mean 'deny'?"]),
    (
        "name: p\nrules:\n- action: supervise\n",
        ["f:3: unknown action 'supervise'; did you mean 'supervisor'?"],
    ),
    (
        "name: p\nrules:\n- action: xyz\n",
        ["f:3: unknown action 'xyz'; known are allow, supervisor, human_approval, deny"],
    ),
    (RULE + "  tols: x\n", ["f:4: unknown key of a rule 'tols'; did you mean 'tools'?"]),
    (RULE + "agnet: x\n", ["f:4: unknown key of a policy 'agnet'; did you mean 'agent'?"]),
    (RULE + "  kind: raed\n", ["f:4: unknown kind 'raed'; did you mean 'read'?"]),
    (RULE + "  tools: '[a'\n", ["f:4: malformed glob '[a': a `[` without its `]`"]),
    (RULE + "  when: {x: {glob: '[a'}}\n", ["f:4: malformed glob '[a': a `[` without its `]`"]),
    (RULE + "  when: {x: {regex: '(a'}}\n", ["f:4: malformed regex '(a': a `(` without its `)`"]),
    (
        RULE + "  when: {x: {regex: '(?=a)b'}}\n",
        [
            "f:4: malformed regex '(?=a)b': a `(?`: looking around, conditions and flags inside are not supported"
        ],
    ),
    (
        RULE + "  when: {x: {lt: 5}}\n",
        ["f:4: unknown operator 'lt'; known are ==, !=, <, <=, >, >=, in, glob, regex, exists, under"],
    ),
    (RULE + "  when: {x: {globs: 'a'}}\n", ["f:4: unknown operator 'globs'; did you mean 'glob'?"]),
    (RULE + "  when: {x: {'<': '5'}}\n", ["f:4: the value of `<` is no number; write one, without quotes"]),
    (
        RULE + "  when: {field: x, op: '<'}\n",
        ["f:4: a condition without `value`; write field, op and value"],
    ),
    (
        RULE + "  when: {comand: x}\n",
        ["f:4: unknown field 'comand'; did you mean 'command'? (an argument of that name is params.comand)"],
    ),
    (
        RULE + "  when: {param.x: 1}\n",
        ["f:4: unknown field 'param.x'; did you mean 'params'? (an argument of that name is params.param.x)"],
    ),
    (
        RULE + "  when: {paths: {under: $WORKSPAC/x}}\n",
        ["f:4: unknown variable '$WORKSPAC'; did you mean '$WORKSPACE'?"],
    ),
    (
        RULE + "  when: {paths: {glob: '*.py'}}\n",
        ["f:4: the glob '*.py' matches no path, they begin with `/`; write '**/*.py'"],
    ),
    (
        RULE + "  when: {command: {glob: 'curl * | sh'}}\n",
        [
            (
                "f:4: 'curl * | sh' matches no command: each is seen alone, without quotes, `|`, `;` and `&&`; "
                "write a pattern for each, and `> file` for a redirection"
            )
        ],
    ),
    (
        RULE + "  when: {tool: {under: /x}}\n",
        ["f:4: `tool` cannot be under a folder; write a condition on `paths`"],
    ),
    (
        RULE + "  when: {command: 'git push*'}\n",
        [
            (
                "f:4: `==` on `command` takes 'git push*' as it is, `*` and `?` too; write {command: {glob: 'git push*'}}, "
                "or {glob: 'git push\\*'} if the character itself is meant"
            ),
        ],
    ),
    (
        RULE + "  when:\n    any:\n    - tool: [a.b, 'files.*']\n    - not: {paths: {'==': '*.py'}}\n",
        [
            (
                "f:6: `in` on `tool` takes 'files.*' as it is, `*` and `?` too; write {tool: {glob: 'files.*'}}, "
                "or {glob: 'files.\\*'} if the character itself is meant"
            ),
            (
                "f:7: `==` on `paths` takes '*.py' as it is, `*` and `?` too; write {paths: {glob: '**/*.py'}}, "
                "or {glob: '\\*.py'} if the character itself is meant"
            ),
        ],
    ),
    (
        RULE + "  when: {field: params.file_path, op: '!=', value: '/a/?'}\n",
        [
            (
                "f:4: `!=` on `params.file_path` takes '/a/?' as it is, `*` and `?` too; "
                "write {not: {params.file_path: {glob: '/a/?'}}}, or {glob: '/a/\\?'} if the character itself is meant"
            ),
        ],
    ),
    (RULE + "  when: {command: {'<': 5}}\n", ["f:4: `command` cannot be compared by `<`; it is text"]),
    (
        RULE + "  when: {x: no}\n",
        ["f:4: 'no' means something else in YAML than it seems; write true or false, or quote it"],
    ),
    (
        RULE + "  when: {x: 010}\n",
        ["f:4: '010' means something else in YAML than it seems; write a plain number, or quote it as text"],
    ),
    (
        RULE + "  when: {x: 2024-01-01}\n",
        ["f:4: '2024-01-01' means something else in YAML than it seems; write it in quotes"],
    ),
    (RULE + "  when: {}\n", ['f:4: a condition is no map; write one like {amount: {"<": 500}}']),
    (RULE + "  when: {any: []}\n", ["f:4: `any` is no list; write `- ` before each item, and at least one"]),
    (RULE + "  when: {x: {exists: 1}}\n", ["f:4: `exists` takes true or false"]),
    (
        RULE + "  timeout: 5m\n",
        ["f:4: `timeout` in a rule that asks nobody; leave it out, or write action: supervisor"],
    ),
    (
        "name: p\nrules:\n- action: supervisor\n  timeout: 5\n",
        ['f:4: `timeout` is no duration up to 7 days; write one like "30s", "5m" or "2h"'],
    ),
    (
        "name: p\nrules:\n- action: supervisor\n  on_timeout: allow\n",
        ["f:4: unknown on_timeout 'allow'; known are deny"],
    ),
    (RULE + "  action: deny\n", ["f:4: 'action' is here twice; leave one of them out"]),
    (
        RULE + "- {id: rule-1, action: deny}\n",
        ["f:4: the id 'rule-1' is that of the rule in line 3; write another"],
    ),
    (
        "name: p\nrules:\n- tools: x\n",
        ["f:3: a rule without `action`; write one of allow, supervisor, human_approval, deny"],
    ),
    ("name: p\n", ["f:1: a policy without `rules`; write name and rules"]),
    ("rules: []\n", ["f:1: a policy without `name`; write name and rules"]),
    ("name: p\nrules: []\n", ["f:2: `rules` is no list; write `- ` before each item, and at least one"]),
    (
        "name: 'a:b'\nrules: [{action: deny}]\n",
        ["f:1: `name` is no name; write letters, digits, `_`, `-` and `.`, at most 64"],
    ),
    ("name: default\nrules: [{action: deny}]\n", ["f:1: the name 'default' is taken; write another"]),
    (
        "- a\n",
        [
            "f:1: a policy is no map; write `key: value` lines",
            "f:1: a policy without `name`; write name and rules",
        ],
    ),
    ("", ["f:1: no policy in it; `legation policy init` writes one"]),
    ("name: [p\n", ["f:2: not YAML: did not find expected ',' or ']'; correct the syntax"]),
    (
        "name: &a p\nagent: *a\nrules: [{action: deny}]\n",
        ["f:1: an alias (`*name`) is not taken; write it out"],
    ),
    (
        RULE + "max_per_minute: 0\n",
        ["f:4: `max_per_minute` is no whole number from 1 to 1000000000; write one"],
    ),
    (RULE + "max_total: 1.5\n", ["f:4: `max_total` is no whole number from 1 to 1000000000; write one"]),
    (
        RULE + "loop: 5\n",
        ["f:4: `loop` is neither a map nor off; write {same: 3, within: 10s} or off"],
    ),
    (
        RULE + "spend: {field: amount}\n",
        ["f:4: `spend` needs field, per and limit; write {field: amount, per: day, limit: 500}"],
    ),
    (RULE + "spend: {field: a, per: week, limit: 5}\n", ["f:4: unknown per 'week'; known are day, total"]),
    (
        RULE + "  tools: git.*\n  match: svn.log\n",
        [
            "f:5: the example 'svn.log' should match rule rule-1, but no rule of its policy decides it; correct one of them"
        ],
    ),
    (
        RULE + "  tools: git.*\n  not_match: [git.log]\n",
        ["f:5: the example 'git.log' should not match rule rule-1, but it does; correct one of them"],
    ),
    (
        RULE + "- action: deny\n  tools: x\n  match: x\n",
        ["f:6: the example 'x' should match rule rule-2, but rule rule-1 decides it; correct one of them"],
    ),
    (RULE + "  match: [{toll: x}]\n", ["f:4: the example {'toll': 'x'} has an unknown key 'toll'; "]),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=[text[-40:] for text, _ in BROKEN])
def test_a_broken_file_is_refused_with_these_words(text: str, expected: list[str]) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load_text(text, "f")
    found = (refused.value.data or {})["problems"]
    assert isinstance(found, list)
    if expected[0].endswith("; "):  # the rest lists every known word
        assert [line[: len(expected[0])] for line in found] == expected
    else:
        assert _without_alias_line(found) == expected
    assert refused.value.message.startswith("cannot use the policies; correct this:\n- f:")


def test_a_star_that_is_meant_can_be_written_and_an_argument_may_have_one() -> None:
    for when in ("{command: {glob: 'echo \\*'}}", "{command: {regex: 'echo \\*'}}"):
        policies = load_text(RULE + f"  when: {when}\n")
        assert decide(policies, "$ echo '*'").action == "allow"
        assert decide(policies, "$ echo a").action == "deny"
    load_text(RULE + "  when: {note: 'a*', urls: 'https://a.test/?q=1'}\n")


def _without_alias_line(found: list[str]) -> list[str]:
    """What follows from an alias that is not taken is no news."""
    if any("alias" in line for line in found):
        return [line for line in found if "alias" in line]
    return found


def test_all_problems_are_listed_at_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: p\nrules:\n- {action: denny, tols: x}\n- {action: allow, kind: raed}\n"
    )
    (tmp_path / "b.yaml").write_text("name: q\nrulez: 1\n")
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path)
    assert refused.value.message == (
        "cannot use the policies; correct this:\n"
        f"- {tmp_path}/a.yaml:3: unknown key of a rule 'tols'; did you mean 'tools'?\n"
        f"- {tmp_path}/a.yaml:3: unknown action 'denny'; did you mean 'deny'?\n"
        f"- {tmp_path}/a.yaml:4: unknown kind 'raed'; did you mean 'read'?\n"
        f"- {tmp_path}/b.yaml:1: a policy without `rules`; write name and rules\n"
        f"- {tmp_path}/b.yaml:2: unknown key of a policy 'rulez'; did you mean 'rules'?"
    )


@pytest.mark.parametrize("where", ["tools: '[a'", "when: {x: {glob: '[a'}}", "when: {x: {regex: '['}}"])
def test_a_malformed_pattern_in_a_deny_is_never_skipped(where: str) -> None:
    """In the original a broken deny rule silently never matched."""
    with pytest.raises(ConfigInvalid, match="malformed"):
        load_text(f"name: p\nrules:\n- action: deny\n  {where}\n- action: allow\n")


def test_a_folder_is_its_yaml_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "20.yaml").write_text(RULE.replace("p", "second", 1))
    (tmp_path / "10.yml").write_text(
        RULE.replace("p", "first", 1) + "---\n" + RULE.replace("p", "also-first", 1)
    )
    (tmp_path / ".hidden.yaml").write_text("broken: [")
    (tmp_path / "notes.txt").write_text("broken: [")
    (tmp_path / "sub.yaml").mkdir()
    assert [policy.name for policy in load(tmp_path).policies] == ["first", "also-first", "second"]


def test_two_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(RULE)
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path)
    assert (
        f"{tmp_path}/b.yaml:1: the name 'p' is that of the policy at {tmp_path}/a.yaml:1"
        in refused.value.message
    )


def test_what_is_not_a_text_file_is_refused(tmp_path: Path) -> None:
    def problem(path: Path) -> str:
        with pytest.raises(ConfigInvalid) as refused:
            load(path)
        return refused.value.message.split(f"{path}", 1)[1]

    assert problem(tmp_path / "gone.yaml").startswith(": cannot be read: No such file or directory")
    assert problem(tmp_path).startswith(": no policies; put a .yaml file there")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert problem(tmp_path / "pipe.yaml") == ": not a regular file; put the policies into one"
    (tmp_path / "huge.yaml").write_bytes(b"# " + b"x" * MAX_BYTES)
    assert problem(tmp_path / "huge.yaml") == ": larger than 1024 KiB; split it into several files"
    (tmp_path / "latin.yaml").write_bytes(b"name: p\n# caf\xe9\n")
    assert problem(tmp_path / "latin.yaml") == ":2: not UTF-8 text; save it as such"
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    assert problem(tmp_path / "dangling.yaml").startswith(": cannot be read: No such file or directory")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 5000, "a: &x [*x]", "a: !!python/object:os.system x", "\0"]
)
def test_hostile_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        load_text(text)


def test_very_many_problems_are_cut_short() -> None:
    text = "name: p\nrules:\n" + "- action: denny\n" * 300
    with pytest.raises(ConfigInvalid) as refused:
        load_text(text)
    assert refused.value.message.endswith("\n- and 200 more")


@pytest.mark.heavy
def test_more_examples_than_can_be_checked_in_time_are_refused() -> None:
    others = "".join(f"- {{id: r{number}, tools: '*z', action: allow}}\n" for number in range(1000))
    examples = ", ".join(["t"] * 1001)
    text = f"name: p\nrules:\n{others}- {{tools: t, action: allow, match: [{examples}]}}\n"
    with pytest.raises(ConfigInvalid, match="too many examples for so many rules"):
        load_text(text)
