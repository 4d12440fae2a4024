-- Identity, audit, vault, content and buckets. Times are milliseconds since the epoch.
-- Every table that belongs to a workspace has its id, and every query on it names it.

create table app_user (
  id text primary key,
  name text not null,
  email text unique,
  admin_since {int},
  token_version {int} not null default 1,
  created_at {int} not null,
  disabled_at {int}
) {options};

create table workspace (
  id text primary key,
  name text not null,
  status text not null default 'active' check (status in ('active', 'deleting')),
  plan text not null default 'default',
  quota_bytes {int},
  retention_days {int},
  created_at {int} not null
) {options};

create table membership (
  workspace_id text not null references workspace (id),
  user_id text not null references app_user (id),
  role text not null check (role in ('owner', 'operator', 'approver', 'viewer')),
  created_at {int} not null,
  primary key (workspace_id, user_id)
) {options};
create index membership_by_user on membership (user_id);

-- The token itself is nowhere: only its keyed hash, and its last characters to recognise it by.
create table api_token (
  id text primary key,
  workspace_id text not null references workspace (id),
  user_id text not null references app_user (id),
  label text not null,
  kind text not null check (kind in ('user', 'supervisor', 'agent')),
  scopes text not null,
  hash {bytes} not null unique,
  hint text not null,
  created_at {int} not null,
  expires_at {int},
  last_used_at {int},
  revoked_at {int}
) {options};
create index api_token_by_workspace on api_token (workspace_id, id);

create table sign_in_link (
  hash {bytes} primary key,
  user_id text not null references app_user (id),
  workspace_id text not null references workspace (id),
  created_at {int} not null,
  expires_at {int} not null,
  used_at {int}
) {options};

create table audit (
  id text primary key,
  workspace_id text not null references workspace (id),
  at {int} not null,
  actor_kind text not null,
  actor text not null,
  action text not null,
  target text not null,
  details text not null
) {options};
create index audit_by_workspace on audit (workspace_id, id);

-- What tells a wrong key at once: a keyed hash of nothing secret.
create table key_check (
  name text primary key,
  value {bytes} not null,
  created_at {int} not null
) {options};

create table vault_bundle (
  id text primary key,
  workspace_id text not null references workspace (id),
  owner text not null,
  key_id text not null,
  wrapped_key {bytes} not null,
  body {bytes} not null,
  created_at {int} not null
) {options};
create index vault_bundle_by_owner on vault_bundle (workspace_id, owner);
create index vault_bundle_by_key on vault_bundle (key_id);

create table content_key (
  workspace_id text not null references workspace (id),
  owner text not null,
  key_id text not null,
  wrapped_key {bytes} not null,
  created_at {int} not null,
  primary key (workspace_id, owner)
) {options};
create index content_key_by_key on content_key (key_id);

-- Where each stream ends. A row of its own, changed in place: on Postgres two runs that append at once would
-- otherwise get in each other's way, because reading the end of one locks a whole page of the index.
create table content_stream (
  workspace_id text not null,
  owner text not null,
  stream text not null,
  last_seq {int} not null,
  primary key (workspace_id, owner, stream),
  foreign key (workspace_id, owner) references content_key (workspace_id, owner) on delete cascade
) {options};

create table content_page (
  workspace_id text not null,
  owner text not null,
  stream text not null,
  first_seq {int} not null,
  last_seq {int} not null,
  plain_bytes {int} not null,
  body {bytes} not null,
  primary key (workspace_id, owner, stream, last_seq),
  foreign key (workspace_id, owner) references content_key (workspace_id, owner) on delete cascade
) {options};

-- As full as `tokens` at `updated_at`; from `full_at` on the row says nothing and may go.
create table bucket (
  workspace_id text not null,
  name text not null,
  tokens {real} not null,
  updated_at {int} not null,
  full_at {int} not null default 0,
  primary key (workspace_id, name)
) {options};
