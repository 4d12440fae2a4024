-- The inbox: what waits for somebody, went wrong or is ready, beside the approvals, which have a table of their own.

-- Nothing that anybody said is in it: what a session is called, and what is asked, is where it was said. `state` is a fixed word.
create table inbox_item (
  workspace_id text not null references workspace (id),
  id text {exact} not null, -- a session's, or a question's
  kind text not null check (kind in ('question', 'session', 'run')),
  section text not null check (section in ('you', 'wrong', 'ready')),
  state text not null,
  session_id text {exact},
  server text not null, -- that has it
  since {int} not null,
  expires_at {int},
  primary key (workspace_id, id)
) {options};
create index inbox_item_newest on inbox_item (workspace_id, section, since, id);
create index inbox_item_of_session on inbox_item (workspace_id, session_id);
create index inbox_item_of_server on inbox_item (server, kind);
create index inbox_item_since on inbox_item (since);

-- What a person has looked at, as it was then: what has happened to it since is new.
create table inbox_look (
  workspace_id text not null,
  person text not null,
  item text {exact} not null,
  since {int} not null,
  primary key (workspace_id, person, item),
  foreign key (workspace_id, item) references inbox_item (workspace_id, id) on delete cascade
) {options};
create index inbox_look_of_item on inbox_look (workspace_id, item);

-- How often each of several servers has changed it, so that the others see that there is something new.
create table inbox_head (
  workspace_id text not null references workspace (id),
  server text not null,
  seq {int} not null,
  primary key (workspace_id, server)
) {options};

-- What is pending, by what expires next. Of an expression, so that only who asks for just that uses it: SQLite would else
-- take it for every query with an end to the expiry, before an index that leads closer.
create index approval_pending_expiry on approval (workspace_id, (expires_at + 0), id) where status = 'pending';

-- A grant for what lies in one folder; null: wherever it is.
alter table approval_grant add column folder text;
