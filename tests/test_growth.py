"""`./dev bench growth`: its arithmetic, its table and plot, and every row once, at sizes that say nothing."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.growth import Growth, read, text, write_into
from bench.growth_plot import plot
from bench.growth_rows import ROWS, Below, Curve, Flat, More, Times, slope
from bench.growth_server import LONG, Tree, running
from bench.harness import ROOT

LIMIT = 600.0  # seconds: some servers and agents, on a loaded machine
SIZES = {
    "approvals": (40, 80),
    "pollers": (40, 80),
    "replay": (20, 40),
    "sessions": (0, 3),
    "start": (0, 3),
    "events": (300, 600),
    "messages": (2_500, 5_000),
    "agents": (1, 2),
    "rules": (3, 6),
}
# What all rows have in common is shown by two of them each day: one that asks a server, one that starts agents.
DAILY = {"approvals", "sessions"}
EACH = [pytest.param(row.name, marks=() if row.name in DAILY else pytest.mark.slow) for row in ROWS]
START = next(row for row in ROWS if row.name == "start")
CURVES: dict[str, Curve] = {
    "start": {0: 1.0, 10: 2.0, 1000: 20.0},
    "memory then": {0: 50.0, 10: 50.0, 1000: 71.0},
}


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ({10: 1.0, 100: 5.0, 1000: 50.0}, 1.0),  # the two largest alone
        ({1000: 7.0, 100: 7.0}, 0.0),
        ({100: 1.0, 10_000: 10.0}, 0.5),
        ({10: 8.0, 100: 4.0}, pytest.approx(-0.301, abs=0.001)),
        ({0: 1.0, 100: 5.0}, None),  # nothing has no logarithm
        ({100: 5.0}, None),
    ],
)
def test_a_slope_is_that_of_the_two_largest_sizes(curve: Curve, found: float | None) -> None:
    assert slope(curve) == (found if found is None else pytest.approx(found))


def test_a_bound_says_whether_it_holds_or_that_the_sizes_do_not_say() -> None:
    steep, flat = {100: 1.0, 1000: 1.3}, {100: 1.0, 1000: 1.2}
    assert (Flat().holds(steep), Flat().holds(flat), Flat().holds({100: 1.0})) == (False, True, None)
    assert (Times(1.3).holds({0: 1.0, 9: 1.4}), Times(1.3).holds({0: 1.0, 9: 1.3})) == (False, True)
    assert (More(20, "MB").holds({0: 50.0, 9: 71.0}), More(20, "MB").holds({0: 50.0, 9: 70.0})) == (
        False,
        True,
    )
    a_second = Below(1, "s", 100)
    assert a_second.holds({10: 0.1, 100: 1.1}) is False
    assert a_second.holds({10: 0.1, 100: 1.0, 245: 3.0}) is True
    assert a_second.holds({10: 0.1, 40: 0.2}) is None  # nobody tried a hundred
    assert a_second.holds({10: 1.1, 40: 0.2}) is False
    assert (Below(50, "ms").holds({10: 51.0}), Below(50, "ms").holds({10: 50.0})) == (False, True)


def test_the_table_has_every_size_the_slope_and_the_verdict_and_what_was_before() -> None:
    alone = text({"start": CURVES}, None, ("", "now"))
    assert "| start, CPU s | 1 | 2 | 20 | 0.50 | at most 1.3 times the smallest | NOT REACHED |" in alone
    flat = {"start": {0: 1.0, 10: 1.0}, "memory then": {0: 50.0, 10: 51.0}}
    both = text({"start": flat}, {"start": CURVES}, ("old", "new")).splitlines()
    assert both[2] == "| start, CPU s, old | 1 | 2 | 20 | 0.50 | | |"
    assert both[3] == "| new | 1 | 1 |  |  | at most 1.3 times the smallest | reached |"


def test_the_plot_has_a_line_for_each_figure_and_a_dashed_one_for_what_was_before() -> None:
    drawn = ElementTree.fromstring(plot({"start": CURVES}, {"start": CURVES}, ("old & older", "new")))
    lines = drawn.findall(".//{*}polyline")
    assert [line.get("stroke-dasharray") is not None for line in lines] == [True, False] * 2
    assert len(lines[0].attrib["points"].split()) == 3
    words = [each.text for each in drawn.findall(".//{*}text")]
    assert {"dashed: old & older; solid: new", "start: sessions", "memory then,"} <= set(words)
    first, last = (line.attrib["points"].split()[-1].split(",") for line in lines[::2])
    assert 0 < float(first[1]) < 250
    assert float(first[0]) == float(last[0]) > 0


def test_the_table_is_put_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- growth -->\nold\n<!-- /growth -->\nafter\n")
    write_into(page, "new\n", "growth")
    write_into(page, "newer\n", "growth")
    assert page.read_text() == "before\n<!-- growth -->\nnewer\n<!-- /growth -->\nafter\n"
    (tmp_path / "none.md").write_text("no marks\n")
    with pytest.raises(SystemExit):
        write_into(tmp_path / "none.md", "new\n", "growth")


@pytest.mark.heavy
@pytest.mark.timeout(int(LIMIT))
def test_a_filled_record_is_one_that_the_product_takes_for_its_own(tmp_path: Path) -> None:
    growth = Growth(Tree(), Tree(), tmp_path, tmp_path)
    for kind, size in (("traces", 60), ("sessions", 12), ("events", 500)):
        growth.fill(kind, size)
    rows = {row.name: row for row in ROWS}
    with growth.home(rows["approvals"], 60) as home, running(home) as server:
        [chain] = server.call("GET", "/v1/trace/verify")
        assert (chain["problems"], chain["steps"] >= 60) == ([], True)
        [asked] = server.call("GET", "/approvals?limit=1")
        assert asked["status"] == "denied"
    with growth.home(rows["sessions"], 12) as home, running(home) as server:
        found = server.call("GET", "/v1/sessions")["sessions"]
        assert len([each for each in found if each["ended"]]) == 1
        assert len(found) == 13
        server.play("ses-0000003")
    with growth.home(rows["events"], 500) as home, running(home) as server:
        head = server.call("GET", f"/v1/sessions/{LONG}")["eventCount"]
        assert 300 < head <= 502
        server.play(LONG)
        told = server.call("GET", f"/v1/sessions/{LONG}/events")["events"]
        assert [each["sequence"] for each in told] == list(range(1, len(told) + 1))
        assert [each["type"] for each in told].count("turn.ended") == head // 106 + 1


@pytest.mark.heavy
@pytest.mark.timeout(int(LIMIT))
@pytest.mark.parametrize("name", EACH)
def test_each_row_is_measured_at_every_size(tmp_path: Path, name: str) -> None:
    sizes, row = SIZES[name], next(each for each in ROWS if each.name == name)
    drawn = tmp_path / "growth.svg"
    argv = [
        sys.executable,
        "-m",
        "bench",
        "growth",
        "--row",
        name,
        *map(str, sizes),
        "--calls",
        "1",
        "--json",
    ]
    done = subprocess.run(
        [*argv, "--plot", drawn, "--scratch", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    [(found, metrics)] = json.loads(done.stdout)["rows"].items()
    assert (found, list(metrics)) == (name, [metric.name for metric in row.metrics])
    assert all(list(each["curve"]) == [str(size) for size in sizes] for each in metrics.values())
    ElementTree.parse(drawn)
    (tmp_path / "growth.json").write_text(done.stdout)
    label, curves = read(tmp_path / "growth.json")
    assert (label, [sorted(curve) for curve in curves[name].values()]) == (
        "now",
        [sorted(sizes)] * len(metrics),
    )
