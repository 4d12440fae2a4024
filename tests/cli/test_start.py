"""`legation up` and `legation server` without the parser: what is read there is what the parser reads."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from legation.cli import up
from legation.cli.main import PLAIN, make_app
from legation.cli.start import PlainLine, read_plain

READ = (
    "up",
    "server",
    "server --port 0",
    "up --port 65535 --host 0.0.0.0",
    "server --data-dir a/b --log-level debug",
    "server --data-dir ~/x --token secret --mesh-port 00",
    "server --exit-with-parent --port 007",
    "up --policy p.yaml --tools /etc/t.yaml",
    "server --port 1 --exit-with-parent --data-dir /tmp",
    "server --no-token --host 0.0.0.0 --port 3000",
    "server -n -H 0.0.0.0 -p 3000 --no-telemetry",
    "server -H :: -p 1 -t secret",
    "up --folder a --folder /b --folder ~/c",
    "server --cors-allow-origin http://a -O https://b --processes",
    "up --processes",
)
LEFT = (
    "",
    "status",
    "up --help",
    "server -h",
    "server --port",
    "server --port=1",
    "server --port -1",
    "server --port 1.5",
    "server --port \u0661",
    "server --port 1 --port 2",
    "server --data-dir --help",
    "up --no-token",
    "server --no-token -n",
    "server -p 1 --port 2",
    "server --folder",
    "server --processes --processes",
    "server --processes=false",
    "server --exit-with-parent --exit-with-parent",
    "up --exit-with-parent",
    "up now",
    "server --unknown 1",
    "server --data_dir x",
)


@pytest.mark.parametrize("line", READ)
def test_a_plain_line_is_read_as_the_parser_reads_it(line: str) -> None:
    assert read_plain(line.split()) == parsed(line.split())


@pytest.mark.parametrize("line", LEFT)
def test_whatever_else_there_is_is_left_to_the_parser(line: str) -> None:
    assert read_plain(line.split()) is None
    assert read_plain(["server", "--host", ""]) is None


def test_only_these_two_are_asked_before_the_parser_is_loaded() -> None:
    assert [name for name in PLAIN if read_plain([name])] == ["up", "server"]


def parsed(argv: list[str]) -> PlainLine:
    command, bound, _ = make_app(argv[0]).parse_args(argv, exit_on_error=False, print_error=False)
    assert command in (up.up, up.server)
    given: dict[str, Any] = dict(bound.arguments)
    flags = given.pop("settings", None)
    named = {field.name: getattr(flags, field.name) for field in fields(flags)} if flags else {}
    exit_with_parent, no_token = given.pop("exit_with_parent", False), given.pop("no_token", False)
    given.pop("no_telemetry", None)
    assert not given
    return PlainLine(
        "up" if command is up.up else "server",
        {name: value for name, value in named.items() if value is not None},
        exit_with_parent,
        no_token,
    )


def test_a_path_is_a_path() -> None:
    assert read_plain(["up", "--data-dir", "x"]) == PlainLine("up", {"data_dir": Path("x")}, False)
