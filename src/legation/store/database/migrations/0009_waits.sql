-- Approvals that outlive a server: who waits is part of the request, and who keeps it alive is told apart from that.

-- Whoever keeps waiters alive: a process of a server, or a program that waits by itself (`server` is null). `seen` is a
-- moment of `pulse`; after `grace` more of it nobody answers what it waits for, until it is heard of again.
create table holder (
  id text primary key,
  server text,
  grace {int} not null,
  seen {int} not null
) {options};

-- The time in which the database answered, in milliseconds: any server moves it on, by a little at a time, so that
-- nobody is silent for as long as nobody could be heard. One row. `at`: when it was moved last.
create table pulse (
  id {int} primary key check (id = 1),
  ms {int} not null,
  at {int} not null
) {options};
insert into pulse (id, ms, at) values (1, 0, 0);

-- It held processes, which were what waited. What they waited for has no holder now: it is superseded, and says so.
drop table waiter;
alter table approval add column holder text not null default '';
update approval set holder = waiter where status in ('pending', 'approved') and consumed_at is null;
-- Of a call that goes on when its holder is gone: another process takes it over.
alter table approval add column outlives {int} not null default 0;
-- When it is to be looked at again, by any server: whether a supervisor is there, or to notify people.
alter table approval add column look_at {int};
alter table approval add column notified_at {int};
create index approval_open_holder on approval (holder)
  where status in ('pending', 'approved') and consumed_at is null;
create index approval_pending_look on approval (needs, look_at) where status = 'pending';
-- An effect that is under way is of the process that carries it out.
alter table acting rename column waiter to holder;

-- Calls under a key of their caller's: found again by whoever made them, and carried on by whichever server is there.
-- `result`: JSON, how it ended; nothing that anybody said, which is in the trace. `used_key`: of the one use of an ask.
create table keyed_call (
  id text primary key,
  workspace_id text not null references workspace (id),
  requester_kind text not null,
  requester text not null,
  key text not null,
  digest text not null,
  waiter text not null,
  holder text not null,
  tool text not null,
  trace_id text not null,
  status text not null check (status in ('waiting', 'passed', 'begun', 'done', 'refused', 'unknown', 'used')),
  result text,
  used_key text,
  created_at {int} not null,
  forget_at {int}
) {options};
create unique index keyed_call_by_key on keyed_call (workspace_id, requester_kind, requester, key);
create index keyed_call_open on keyed_call (holder) where status in ('waiting', 'begun');
create index keyed_call_by_trace on keyed_call (workspace_id, trace_id);
create index keyed_call_forget on keyed_call (forget_at) where forget_at is not null;
