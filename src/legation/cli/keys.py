"""`legation keys`: the keys that seal and sign."""

from __future__ import annotations

from cyclopts import App

from legation.cli.command import PlaceFlags, connect, say

app = App(name="keys", help="Keys: make one, or put a new one to use.")


@app.command
def new() -> None:
    """Print a fresh key, for LEGATION_VAULT_KEY, LEGATION_TOKEN_PEPPER, LEGATION_COOKIE_KEY or LEGATION_TOKEN."""
    from legation.store.secrets.sealer import new_key_text

    say(new_key_text())


@app.command
def rotate(*, settings: PlaceFlags | None = None) -> None:
    """Seal with a new vault key from now on, and re-wrap what is sealed; then the old one is forgotten.

    For keys in the data folder. Where they are set as LEGATION_VAULT_KEY, put a new one before the old one,
    `new,old`, restart the servers, run this, and take the old one away.
    """
    with connect(settings) as server:
        done = server.rotate_keys()
    say(f"now key {done.key_id}; {done.rewrapped} re-wrapped")
    say("backups made before this open only with the key of then", "dim")
