"""What each role sees and may press, on every page: nobody has a button that the server would refuse (TEN-10, DEC-06)."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.browser import needs_browser
from tests.cli.command import rehearse
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)

# By role: answer approvals, answer questions and speak, begin, cancel and install.
ROLES = {
    "viewer": (0, 0),
    "approver": (1, 0),
    "operator": (0, 1),
    "owner": (1, 1),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with chromium() as browser, dashboard(tmp_path_factory.mktemp("roles"), browser) as made:
        made.begin("asks", "say hello", "ask write a.txt x")
        made.begin("wonders", "elicit Which one? name:string")
        made.pending("asks")
        made.pending("wonders")
        yield made
        assert made.complaints == []


def shown(page: Page, address: str, there: str) -> None:
    """Go there as a link of the page does, which loads nothing anew; `there` is what the place before had not."""
    expect(page.locator(there)).to_have_count(0)
    page.evaluate(
        "to => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }",
        f"/ui/{address}",
    )
    expect(page.locator(there).first).to_be_visible()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_the_buttons_that_it_may_press_and_no_others(house: Dashboard, role: str) -> None:
    approves, operates = ROLES[role]
    approval, question = house.pending("asks"), house.pending("wonders")
    run = house.post("/v1/runs", {"agent": "rehearsal", "prompt": rehearse("say begun", "stall 600")})["id"]
    person = None if role == "owner" else house.person(role.title(), role)
    try:
        with house.visitor(person) as page:
            page.goto(f"{house.origin}/ui/inbox")
            expect(page.locator(".list").first).to_be_visible()
            # What nobody but others may answer is folded, and is not counted.
            needs = approves + operates
            expect(page.locator(".rows .row.you")).to_have_count(needs)
            if needs:
                expect(page).to_have_title(f"({needs}) Legation")
            shown(page, f"inbox/{approval}", ".bar")
            expect(page.get_by_role("heading", name="Edit a.txt")).to_be_visible()
            expect(page.locator(".diff .add")).to_have_count(1)  # everybody sees what it is about
            expect(page.locator(".bar button:visible")).to_have_count(3 if approves else 0)
            if not approves:
                expect(page.locator(".bar")).to_contain_text("Answering takes the role approver.")
            shown(page, f"inbox/wonders/q/{question}", "h1:text('A question of the agent')")
            expect(page.locator(".bar").first).to_be_visible()
            expect(page.locator(".bar button")).to_have_count(2 if operates else 0)
            shown(page, "sessions/asks", ".turn")
            expect(page.get_by_label("Say something")).to_have_count(operates)
            expect(page.get_by_role("button", name="Cancel turn")).to_have_count(operates)
            expect(page.get_by_role("button", name="End the session")).to_have_count(operates)
            shown(page, f"runs/{run}", ".track")
            expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(operates)
            for address, there, name in (
                ("sessions", ".session-row", "New session"),
                ("runs", ".run-row", "New run"),
            ):
                shown(page, address, there)
                expect(page.get_by_role("link", name=name)).to_have_count(operates)
            for noun in ("session", "run"):
                shown(page, f"{noun}s/new", f"main h1:text('New {noun}')")
                expect(page.get_by_label("What should be done")).to_have_count(operates)
            shown(page, "agents", ".table td")
            expect(page.get_by_role("button", name="Install").first).to_have_count(operates)
            shown(page, "start", ".steps")
            expect(page.get_by_role("button", name="Start the rehearsal")).to_have_count(operates)
            # And no key does what no button may.
            shown(page, "sessions", ".session-row")
            page.keyboard.press("n")
            expect(
                page.get_by_role("heading", name="New session" if operates else "Sessions")
            ).to_be_visible()
    finally:
        house.post(f"/v1/runs/{run}/cancel")
    assert house.get(f"/approvals/{approval}")["status"] == "pending"
