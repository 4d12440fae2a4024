"""What the sealed tables need around them: workspaces, and keys."""

from tests.store.database.databases import Either

from legation.secret import Secret
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.sealer import Key, KeyRing, Keys, Sealer, make_key, new_key_text

WORKSPACES = ("local", "other")

(_ADD,) = parse("-- name: add\ninsert into workspace (id, name, created_at) values (:id, :id, 0);")


async def add_workspaces(database: Either) -> None:
    def add() -> Transaction[None]:
        for workspace in WORKSPACES:
            yield _ADD(id=workspace)

    await database.transact(add)


def new_key() -> Key:
    return make_key(Secret(new_key_text(), "vault-key"))


def new_sealer() -> Sealer:
    return Sealer(KeyRing(new_key()))


def new_keys(*vault: Key) -> Keys:
    current, *older = vault or (new_key(),)
    return Keys.of(KeyRing(current, tuple(older)), Secret(new_key_text()), Secret(new_key_text()))
