"""Tools of those who work on Legation; no part of the package. Each runs from the root: `python -m tools.NAME`."""
