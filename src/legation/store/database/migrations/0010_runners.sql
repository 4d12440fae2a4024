-- Runners that report home, and what they have reported.

-- `head` is the sequence of the last report that was accepted, `ended_at` when that was a terminal one. The token itself is
-- not kept: whoever reports brings it along.
create table runner (
  id text primary key,
  workspace_id text not null,
  token_digest {bytes} not null,
  machine text not null,
  head {int} not null default 0,
  created_at {int} not null,
  seen_at {int} not null,
  ended_at {int}
) {options};

-- Nonces of reports, for as long as one could come again.
create table runner_nonce (
  runner_id text not null references runner (id) on delete cascade,
  nonce text not null,
  at {int} not null,
  primary key (runner_id, nonce)
) {options};
create index runner_nonce_at on runner_nonce (at);
