"""Write the reference pages that come from the code: `python docs/generate.py`, or `./dev check --fix`."""

from pathlib import Path

from legation import errors, settings
from legation.agents.rehearsal import steps
from legation.wire import reference

PAGES = Path(__file__).parent / "reference"


def main() -> None:
    (PAGES / "errors.md").write_text(errors.reference())
    (PAGES / "settings.md").write_text(settings.reference())
    (PAGES / "events.md").write_text(reference.page())
    (PAGES / "rehearsal.md").write_text(steps.page())


if __name__ == "__main__":
    main()
