"""Every query on what belongs to a workspace names the workspace, or is listed here with its reason."""

import re
from pathlib import Path

import legation.store
from legation.store.database import migrations
from legation.store.database.transaction import Queries

SQL = Path(legation.store.__file__).parent / "sql"

# (file, query): why it may look across workspaces.
ACROSS = {
    ("tokens", "token_by_hash"): "a credential comes before the workspace: it says which one it is",
    ("tokens", "note_use"): "by the token's id, which was just found by its hash",
    ("links", "use_link"): "as a token's",
    ("links", "drop_links_of"): "a user is signed out everywhere",
    ("links", "drop_old_links"): "housekeeping",
    ("approvals", "open_of_holders"): "any server looks after what those left that are gone",
    ("approvals", "to_look_at"): "housekeeping: escalations and notices, wherever they are due",
    ("approvals", "look_later"): "housekeeping: escalations, wherever they are due",
    ("approvals", "next_look"): "housekeeping: when the next is due",
    ("calls", "stray_calls"): "any server looks after what those left that are gone",
    ("calls", "forget_calls"): "housekeeping",
    ("door", "lost_holders"): "any server looks after what those left that are gone",
    ("door", "forget_holders"): "any server looks after what those left that are gone",
    ("approvals", "due"): "housekeeping: what has expired, wherever it is",
    ("rewrapping", "bundles"): "rotation goes through everything",
    ("rewrapping", "content_keys"): "rotation goes through everything",
    ("vault", "keys_in_use"): "a key is missing: how much is sealed with it",
    ("vault", "keys_named"): "a start looks whether it has every key that is needed",
    ("buckets", "forget_full"): "housekeeping",
    ("counters", "forget"): "housekeeping",
    ("door", "forget_attendance"): "housekeeping",
    ("door", "effects_of"): "a server that starts looks after what dead ones left",
    (
        "inbox",
        "questions_of_server",
    ): "a process that starts: those of the one before it are over, wherever they were asked",
    ("runs", "forget_workers"): "housekeeping: a worker is of no workspace",
    ("runs", "claim"): "a worker works for all workspaces",
    ("runs", "renew"): "by the lease of each, which was just claimed",
    ("runs", "release"): "by the lease of each, which was just claimed",
    ("runs", "settle"): "by the lease of each, which was just claimed",
    ("audit", "names_of"): "by ids that rows of the reader's own workspace have, and that nobody guesses",
    ("door", "heads"): "one query asks where the chains of all workspaces end",
}


def tables() -> set[str]:
    """Those with a workspace_id column, read from the migrations."""
    text = "\n".join(migration.text for migration in migrations.chain())
    found = re.findall(r"create table (\w+) \((.*?)\n\)", text, re.DOTALL)
    return {name for name, columns in found if "workspace_id" in columns}


def test_every_query_on_a_workspaces_table_names_the_workspace() -> None:
    ours = tables()
    assert {"membership", "api_token", "audit", "vault_bundle", "content_page"} <= ours
    unscoped = {
        (file.stem, query.name)
        for file in SQL.glob("*.sql")
        for query in Queries(file.stem)
        if ours & set(re.findall(r"\w+", query.sqlite))
        and not re.search(r"\bworkspace(_id)?\b\s*(=|,|\))|:workspace", query.sqlite)
    }
    assert unscoped - ACROSS.keys() == set()


def test_no_exception_is_listed_in_vain() -> None:
    known = {(file.stem, query.name) for file in SQL.glob("*.sql") for query in Queries(file.stem)}
    assert ACROSS.keys() <= known
