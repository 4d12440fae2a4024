-- Durable runs. Plain columns hold ids, names, numbers, times and codes; what anybody wrote or an agent said (prompts, the
-- snapshot of a submission, templates, events, outputs) is sealed, under the id of its run or template as the owner.
-- States have no check here: SQLite cannot change one, and the table that they move by is in runs/states.py.

-- Code-first: a template is its hash. Its text is sealed.
create table run_template (
  id text primary key,
  workspace_id text not null references workspace (id),
  name text not null,
  hash text not null,
  bytes {int} not null,
  created_at {int} not null,
  created_kind text not null,
  created_by text not null,
  created_user text
) {options};
create unique index run_template_by_hash on run_template (workspace_id, hash);
create index run_template_by_workspace on run_template (workspace_id, id);

-- The row is the queue. Whoever holds the lease writes what follows `state`; others only ask (cancel_requested_at,
-- delete_requested_at) and wake it (next_check_at, woken). `next_check_at` is null of what waits for a slot or has ended, so that
-- neither is ever looked through; `machine` is '' until a runner starts. No column of the lease is in an index, and a page of the
-- table has room for the next version of its rows: a renewal touches no index.
create table run (
  id text primary key,
  workspace_id text not null references workspace (id),
  creator_kind text not null, -- who submitted it, as it was then
  creator text not null,
  creator_user text,
  template_id text,
  template_hash text,
  agent text not null,
  provider text not null,
  caps text not null, -- JSON: limits in force at submission
  idempotency_key text,
  request_hash text not null,
  priority {int} not null,
  created_at {int} not null,
  next_check_at {int},
  woken {int} not null default 0,
  cancel_requested_at {int},
  delete_requested_at {int},
  lease_owner text,
  lease_token text,
  lease_expires_at {int},
  state text not null,
  outcome text,
  cleanup text not null default 'not_started',
  error_class text,
  error_code text,
  error_reason text, -- redacted
  machine text not null default '',
  attempt {int} not null default 0, -- the number of the newest; 0 before the first
  has_slot {int} not null default 0,
  secret_id text, -- a bundle of the vault; null once it is destroyed
  waits_for text, -- an approval
  resume_at {int},
  watermark text, -- how far a provider was observed
  tries {int} not null default 0, -- of the step that comes next
  started_at {int},
  deadline_at {int},
  ended_at {int},
  deleted_at {int}
) {hot};
create unique index run_by_key on run (workspace_id, idempotency_key) where idempotency_key is not null;
create unique index run_by_workspace on run (workspace_id, id);
create index run_by_state on run (workspace_id, state, id);
create index run_due on run (machine, priority, next_check_at, id) where next_check_at is not null;
create index run_parked on run (workspace_id, priority, id) where state = 'queued' and next_check_at is null;

-- Slots that a workspace's runs have taken. Whoever takes or gives back one holds the row, and looks for runs that wait behind it.
create table run_slots (
  workspace_id text primary key references workspace (id),
  taken {int} not null
) {options};

-- Workers of now: whether anybody is there to work, and which machines are lost.
create table worker (
  id text primary key,
  machine text not null,
  version text not null,
  started_at {int} not null,
  seen_at {int} not null
) {options};
create index worker_by_machine on worker (machine, seen_at);

-- One start of a run's agent. The id is `<run>-<number>`, and the name of all that is made for it begins so.
create table run_attempt (
  id text primary key,
  workspace_id text not null,
  run_id text not null,
  number {int} not null,
  machine text not null,
  session_id text, -- the agent's own name of its session
  handed_at {int}, -- from then on the prompt may have been with the agent
  error_class text,
  error_code text,
  created_at {int} not null,
  ended_at {int},
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};
create unique index run_attempt_by_run on run_attempt (workspace_id, run_id, number);

-- Written before a thing is made, with its id at once after, so that none is ever made that nobody knows of.
create table run_resource (
  workspace_id text not null,
  run_id text not null,
  name text not null,
  attempt {int} not null,
  kind text not null,
  state text not null check (state in ('intended', 'made', 'retained', 'gone')),
  external_id text,
  intended_at {int} not null,
  made_at {int},
  gone_at {int},
  primary key (workspace_id, run_id, name),
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};
create index run_resource_open on run_resource (workspace_id, intended_at) where state in ('intended', 'made');

create table cleanup_attempt (
  workspace_id text not null,
  run_id text not null,
  name text not null, -- of the resource, or of what else is deleted
  number {int} not null,
  status text not null check (status in ('succeeded', 'failed_retryable', 'failed_terminal', 'skipped')),
  error_code text,
  error_reason text,
  at {int} not null,
  primary key (workspace_id, run_id, name, number),
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};

-- One row for each event of a run; the event itself is in the sealed page of the stream `events` that holds its number. `report`
-- is the runner's sequence: with `attempt` it says what was taken before.
create table run_event (
  workspace_id text not null,
  run_id text not null,
  seq {int} not null,
  attempt {int} not null,
  report {int} not null,
  type text not null,
  bytes {int} not null,
  at {int} not null,
  blob text, -- of one above the page cap
  primary key (workspace_id, run_id, seq),
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};

-- Who used how much, by the event or output that said so: in one transaction with it.
create table usage_ledger (
  run_id text not null,
  source text not null, -- `event:<seq>`, `output:<id>`
  kind text not null, -- input_tokens, output_tokens, cost_microusd, bytes, ...
  workspace_id text not null references workspace (id),
  user_id text,
  amount {int} not null,
  at {int} not null,
  primary key (workspace_id, run_id, source, kind)
) {options};
create index usage_ledger_by_workspace on usage_ledger (workspace_id, at);

-- What was captured, and what was not and why. A file's own name is sealed with its content.
create table run_output (
  id text primary key,
  workspace_id text not null,
  run_id text not null,
  source_id text not null,
  blob text not null,
  bytes {int} not null,
  digest text,
  media_type text not null,
  created_at {int} not null,
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};
create unique index run_output_by_run on run_output (workspace_id, run_id, source_id);
create index run_output_by_workspace on run_output (workspace_id, id);

create table run_output_failure (
  workspace_id text not null,
  run_id text not null,
  source_id text not null,
  bytes {int},
  reason text not null,
  error_reason text,
  created_at {int} not null,
  primary key (workspace_id, run_id, source_id),
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};

-- A runner is of one attempt, and has its id. How its prompt ended, in words of a closed set.
alter table runner add column run_id text;
alter table runner add column attempt {int};
alter table runner add column ended_kind text;
alter table runner add column ended_code text;
alter table runner add column heard_at {int}; -- its first sign of life
