-- Commands to runners: answers to what they ask, and what people tell them. What one says is sealed content of the run's.

-- `commands` is the last that was given, `acked` the last that the runner has taken.
alter table runner add column commands {int} not null default 0;
alter table runner add column acked {int} not null default 0;

-- `key`: of an answer its permission, else one of whoever gives it. Under a key there is one.
create table runner_command (
  runner_id text not null references runner (id) on delete cascade,
  id {int} not null,
  workspace_id text not null references workspace (id),
  kind text not null check (kind in ('answer', 'cancel', 'pause', 'resume', 'message', 'end')),
  key text,
  created_at {int} not null,
  primary key (runner_id, id)
) {options};
create unique index runner_command_by_key on runner_command (runner_id, key) where key is not null;
