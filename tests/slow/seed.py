"""Chance that can be had again: every run draws another seed, and a failing test shows it."""

import secrets


def seed() -> int:
    drawn = secrets.randbits(32)
    print(f"seed: {drawn}")  # noqa: T201
    return drawn
