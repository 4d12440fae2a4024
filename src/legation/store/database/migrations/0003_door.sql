-- What the door needs besides: who waits, who supervises, what is being done, and what was counted.

alter table approval add column editable {int} not null default 0;
-- Who alone may decide as a person: a JSON array of names, addresses or ids; null: whoever may approve.
alter table approval add column reviewers text;

-- A grant of one session: "always", said to a permission. Null: of every session.
alter table approval_grant add column session_id text;

-- A process that waits for approvals. One that has not been seen for long is dead, and so is whatever it waited for.
create table waiter (
  id text primary key,
  server text not null,
  seen_at {int} not null
) {options};

-- Supervisors that look at approvals, and at which: `tools` is the pattern that they asked for, or empty.
create table attendance (
  workspace_id text not null references workspace (id),
  supervisor text not null,
  tools text not null,
  seen_at {int} not null,
  primary key (workspace_id, supervisor, tools)
) {options};

-- Effects that began and of which nobody knows the end yet. What a dead process leaves here is "outcome unknown".
create table acting (
  workspace_id text not null references workspace (id),
  trace_id text not null,
  waiter text not null,
  agent text not null,
  tool text not null,
  approval_id text,
  session_id text,
  turn_id text,
  tool_call_id text,
  since {int} not null,
  primary key (workspace_id, trace_id)
) {options};
create index acting_by_waiter on acting (waiter);

-- The calls of one session.
create index trace_call_by_session on trace_step (workspace_id, session_id, at, trace_id)
where step = 'proposed' and session_id is not null;

-- A call is proposed once: callers may bring its id along.
create unique index trace_proposed_once on trace_step (workspace_id, trace_id) where step = 'proposed';

-- How often each rule decided.
create index trace_decided on trace_step (workspace_id, at, policy_rule) where step = 'decided';

-- Counters of limits, by whom, under which policy and of what: `value` is as the counter writes it, counted in
-- transactions that read it first. `until`: when it counts no more and may be forgotten; null: never.
create table counter (
  workspace_id text not null references workspace (id),
  agent text not null,
  policy text not null,
  what text not null,
  value text not null,
  until {int},
  primary key (workspace_id, agent, policy, what)
) {options};
create index counter_until on counter (until) where until is not null;
