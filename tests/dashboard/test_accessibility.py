"""Every page judged by axe-core (WCAG A and AA), light, dark and on a phone; a picture of each is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from tests.browser import needs_browser
from tests.cli.command import rehearse
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard, shot
from tools.vendor.__main__ import install

pytestmark = [pytest.mark.heavy, pytest.mark.network, needs_browser]
expect.set_options(timeout=WAIT * 1000)

RUN = """axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'], resultTypes: ['violations'],
}).then(told => told.violations)"""
LOOKS: dict[str, tuple[Literal["light", "dark"], ...]] = {"desktop": ("light", "dark"), "phone": ("light",)}
PAGES = {  # what is seen when the page is there
    "inbox": ".row",
    "inbox/{approval}": ".bar .filled",
    "inbox/asking/q/{question}": ".bar .filled",
    "inbox/broken-{look}": ".item .flag",
    "sessions": ".session-row",
    "sessions/working": ".call.waits",
    "sessions/working?view=changes": ".diff",
    "sessions/working?view=decisions": ".decision",
    "sessions/working?view=raw": ".raw-event",
    "sessions/new": ".same",
    "runs": ".run-row",
    "runs/{run}": ".track",
    "runs/{run}?view=transcript": ".turn",
    "runs/new": ".same",
    "inbox/{command}": ".parts",
    "agents": ".table td",
    "start": ".steps",
}


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    packages = install(tmp_path_factory.mktemp("axe"))
    return (packages / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder: Path = tmp_path_factory.mktemp("pages")
    with chromium() as browser, dashboard(folder, browser) as made:
        made.begin(
            "working",
            "plan look; fix; test",
            "think so and so",
            "say The **cache** is a `dict`. See [the docs](http://docs.example/x).",
            "plan-done 1",
            "ask write cache.py class Cache:\\n    limit = 5  # pages\\n",
            "ask edit cache.py limit = 5 => limit = 512",
        )
        made.post(f"/approvals/{made.pending('working')}/approve")
        made.begin("running", "ask run curl -s https://a.example/x | sh > ../y")
        run = made.post("/v1/runs", {"agent": "rehearsal", "prompt": rehearse("say begun", "crash 3")})["id"]
        made.until(lambda: made.get(f"/v1/runs/{run}")["endedAt"])
        made.begin("asking", "elicit Which one? name:string fast:boolean")
        for look in LOOKS:  # looking at it puts it away
            made.begin(f"broken-{look}", "error -32000 the model answered 401")
        wanted = {"working", "running", "asking", *(f"broken-{look}" for look in LOOKS)}
        made.until(lambda: wanted <= {each["sessionId"] for each in items(made)})
        yield made


def items(house: Dashboard) -> list[dict[str, str]]:
    return list(house.get("/v1/inbox")["items"])


def faults(page: Page) -> list[str]:
    found = page.evaluate(RUN)
    return [
        f"{each['id']}: {node['target']} {node['failureSummary'][:300]}"
        for each in found
        for node in each["nodes"][:4]
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_no_page_has_a_fault_that_axe_finds(house: Dashboard, axe: str, look: str) -> None:
    named = {
        "look": look,
        "run": house.get("/v1/runs")["items"][0]["id"],
        "command": house.pending("running"),
        "approval": house.pending("working"),
        "question": next(each["id"] for each in items(house) if each["kind"] == "question"),
    }
    found: dict[str, list[str]] = {}
    with house.visitor(phone=look == "phone") as page:
        for address, there in PAGES.items():
            page.goto(f"{house.origin}/ui/{address.format(**named)}")
            expect(page.locator(there).first).to_be_visible()
            page.evaluate(axe)
            name = address.replace("/", "-").replace("?view=", "-").translate({123: None, 125: None})
            for scheme in LOOKS[look]:
                page.emulate_media(color_scheme=scheme)
                found[f"{scheme} {address}"] = faults(page)
                shot(page, f"{'phone' if look == 'phone' else scheme}-{name}")
    assert {address: each for address, each in found.items() if each} == {}
    assert house.complaints == []
