-- Approvals, grants and the trace. Times are milliseconds since the epoch.
-- What an agent or a person said (arguments, results, reasons) is in trace_content, sealed, and in no other table.

create table approval (
  id text primary key,
  workspace_id text not null references workspace (id),
  trace_id text not null,
  waiter text not null,
  session_id text,
  turn_id text,
  tool_call_id text,
  requester_kind text not null,
  requester text not null,
  agent text not null,
  tool text not null,
  kind text not null,
  action_digest text not null,
  policy_version text not null,
  policy_rule text not null,
  verdict text not null check (verdict in ('supervisor', 'human_approval')),
  needs text not null check (needs in ('supervisor', 'person')),
  injection_risk {int} not null,
  argument_bytes {int} not null,
  argument_names text not null,
  content_owner text not null,
  group_key text not null,
  status text not null check (status in ('pending', 'approved', 'denied', 'expired', 'superseded', 'cancelled')),
  created_at {int} not null,
  expires_at {int} not null,
  resolved_at {int},
  consumed_at {int},
  resolver_kind text,
  resolver text,
  resolver_user text,
  resolver_level {int},
  confidence {real},
  claimed_by text,
  claimed_level {int},
  claimed_until {int},
  escalated_at {int},
  escalated_by text,
  replaces text,
  replaced_by text
) {options};
create index approval_by_workspace on approval (workspace_id, id);
create index approval_by_status on approval (workspace_id, status, id);
create index approval_by_tool on approval (workspace_id, tool);
create index approval_pending_group on approval (workspace_id, group_key) where status = 'pending';
-- Open: it may still lead to an effect, so somebody waits for it and time runs out on it.
create index approval_open_expiry on approval (expires_at)
  where status in ('pending', 'approved') and consumed_at is null;
create index approval_open_waiter on approval (waiter)
  where status in ('pending', 'approved') and consumed_at is null;
create index approval_open_session on approval (workspace_id, session_id)
  where status in ('pending', 'approved') and consumed_at is null;

create table approval_grant (
  id text primary key,
  workspace_id text not null references workspace (id),
  agent text not null,
  tools text not null,
  kinds text,
  created_at {int} not null,
  expires_at {int} not null,
  granted_kind text not null,
  granted_by text not null,
  granted_user text,
  revoked_at {int},
  revoked_by text
) {options};
create index approval_grant_by_workspace on approval_grant (workspace_id, id);
create index approval_grant_live on approval_grant (workspace_id, expires_at) where revoked_at is null;

-- Where each chain ends: changed in place with every append, so that no append reads a range.
create table trace_head (
  workspace_id text not null references workspace (id),
  server text not null,
  seq {int} not null,
  hash text not null,
  primary key (workspace_id, server)
) {options};

-- Every column but `hash` is hashed; one that is null is left out, so that a later release may add columns.
create table trace_step (
  workspace_id text not null,
  server text not null,
  seq {int} not null,
  at {int} not null,
  step text not null,
  trace_id text not null,
  agent text not null,
  tool text not null,
  approval_id text,
  session_id text,
  turn_id text,
  tool_call_id text,
  kind text,
  action_digest text,
  policy text,
  policy_rule text,
  policy_version text,
  status text,
  reason text,
  actor_kind text,
  actor text,
  actor_user text,
  actor_level {int},
  confidence {real},
  status_code {int},
  latency_ms {int},
  replaces text,
  content_owner text,
  digests text,
  prev_hash text not null,
  hash text not null,
  primary key (workspace_id, server, seq)
) {options};
create index trace_step_by_trace on trace_step (workspace_id, trace_id);
create index trace_call on trace_step (workspace_id, at, trace_id) where step = 'proposed';
create index trace_call_by_agent on trace_step (workspace_id, agent, at, trace_id) where step = 'proposed';
create index trace_call_by_tool on trace_step (workspace_id, tool, at, trace_id) where step = 'proposed';

-- What a step said, sealed. It goes with its content key; the step and its digests stay.
create table trace_content (
  workspace_id text not null,
  server text not null,
  seq {int} not null,
  name text not null,
  trace_id text not null,
  owner text not null,
  body {bytes} not null,
  primary key (workspace_id, server, seq, name),
  foreign key (workspace_id, owner) references content_key (workspace_id, owner) on delete cascade
) {options};
create index trace_content_by_trace on trace_content (workspace_id, trace_id);
create index trace_content_by_owner on trace_content (workspace_id, owner);
