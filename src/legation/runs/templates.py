"""Templates of runs: code-first, without a secret, known by the hash of what they say.

INV-T1  A template never changes: what says something else is another one, with another hash. The same again is the same one.
INV-T2  Its text is sealed; beside it stand its name, its hash and its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec

from legation.clock import new_id
from legation.errors import NotFound, TooLarge
from legation.store.audit import record
from legation.store.database.transaction import (
    Database,
    Duplicate,
    Overtaken,
    Queries,
    Row,
    Transaction,
    only,
    page_of,
)
from legation.store.secrets.vault import MAX_PAGE, ContentStore
from legation.wire.api.runs import NewTemplate, RunSpec, TemplateView
from legation.wire.api.shape import Page
from legation.wire.principal import Principal

STREAM: Final = "template"
SQL: Final = Queries("run_lists")


@dataclass(frozen=True, slots=True)
class StoredTemplate:
    id: str
    name: str
    hash: str
    created_at: int
    creator: str
    spec: RunSpec


def template_hash(new: NewTemplate) -> str:
    """Hash what it says: the same in every process, however its members were ordered."""
    return digest_of(new)


def digest_of(said: object) -> str:
    """Hash what is said, without what is left open: a member that a later release adds changes no hash."""
    return hashlib.sha256(msgspec.json.encode(_said(said), order="sorted")).hexdigest()


def _said(value: object) -> object:
    if isinstance(value, RunSpec):
        return _said_of_spec(value)
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        found = {}
        for name, each in value.items():
            if _is_said(said := _said(each) if isinstance(each, _NESTED) else each):
                found[name] = said
        return found
    if isinstance(value, list | tuple):
        return [_said(each) if isinstance(each, _NESTED) else each for each in value]
    return value


def _said_of_spec(spec: RunSpec) -> dict[str, object]:
    found = {}
    for member, name, default, said in _spec_members():
        each = getattr(spec, member)
        if each is not default:
            said = _said(each) if each and isinstance(each, _NESTED) else each
        if said is not None and _is_said(said):
            found[name] = said
    return found


@cache
def _spec_members() -> Sequence[tuple[str, str, object, object]]:
    """List the members, with their names in JSON, and their defaults with what these say: most members of most runs are left open."""
    return [
        (each.name, each.encode_name, each.default, _said(each.default))
        for each in msgspec.structs.fields(RunSpec)
    ]


def _is_said(value: object) -> bool:
    return value is not None and (bool(value) or not isinstance(value, _NESTED))


_NESTED: Final = (dict, list, tuple, msgspec.Struct)  # most members are none of these, or open


def add_template(
    content: ContentStore, by: Principal, new: NewTemplate, *, now_ms: int
) -> Transaction[TemplateView]:
    """Keep it; one that is there already is given back as it is."""
    place = {"workspace": by.workspace, "name": template_hash(new)}
    if (row := only((yield SQL.template(**place)))) is not None:
        return _view(row)
    plain = msgspec.json.encode(new.run)
    if len(plain) > MAX_PAGE:
        raise TooLarge(f"cannot keep a template of more than {MAX_PAGE} bytes: put files into its workspace")
    template = new_id("tpl", now_ms=now_ms)
    try:
        yield SQL.add_template(
            id=template,
            workspace=by.workspace,
            name=new.name,
            hash=place["name"],
            bytes=len(plain),
            kind=by.kind,
            by=by.id,
            user=by.user,
            now=now_ms,
        )
    except Duplicate:
        raise Overtaken("cannot keep a template: another kept the same; try again") from None
    yield from content.append(by.workspace, template, STREAM, 1, 1, plain)
    yield from record(by, "template.created", template, {"name": new.name}, now_ms)
    row = only((yield SQL.template(**place)))
    assert row is not None
    return _view(row)


def page_templates(workspace: str, limit: int, after: str) -> Transaction[Page[TemplateView]]:
    """The oldest first."""
    rows = yield SQL.templates(workspace=workspace, after=after, limit=limit + 1)
    return page_of(rows, limit, _view, lambda view: view.id)


async def find_template(
    database: Database, content: ContentStore, workspace: str, name: str
) -> StoredTemplate:
    """Find it by its id or its hash; another workspace's and none at all are the same."""
    row = await database.read(_find, workspace, name)
    pages = [] if row is None else await content.read(workspace, row["id"], STREAM)
    if row is None or not pages:
        raise NotFound("cannot find the template; check its id or its hash among yours")
    spec = msgspec.json.decode(pages[0].plain, type=RunSpec)
    return StoredTemplate(row["id"], row["name"], row["hash"], row["created_at"], row["created_by"], spec)


def _find(workspace: str, name: str) -> Transaction[Row | None]:
    return only((yield SQL.template(workspace=workspace, name=name)))


def view_of_template(found: StoredTemplate) -> TemplateView:
    return TemplateView(
        id=found.id,
        name=found.name,
        hash=found.hash,
        created_at=found.created_at,
        creator=found.creator,
        run=msgspec.Raw(msgspec.json.encode(found.spec)),
    )


def _view(row: Row) -> TemplateView:
    return TemplateView(
        id=row["id"],
        name=row["name"],
        hash=row["hash"],
        created_at=row["created_at"],
        creator=row["created_by"],
    )
