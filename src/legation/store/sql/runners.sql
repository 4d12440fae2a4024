-- name: add_runner
insert into runner (id, workspace_id, token_digest, machine, created_at, seen_at)
values (:id, :workspace, :token_digest, :machine, :now, :now);

-- name: runner
select id, workspace_id, token_digest, machine, head, created_at, seen_at, ended_at, run_id, heard_at, limited_until from runner where id = :id;

-- name: keep_nonce
-- The one place where a nonce is used up: whoever gets the row is the one who came first.
insert into runner_nonce (runner_id, nonce, at) values (:id, :nonce, :now)
on conflict (runner_id, nonce) do nothing returning nonce;

-- name: forget_nonces
-- In batches, so that nobody waits for a long list.
delete from runner_nonce where (runner_id, nonce) in (
  select runner_id, nonce from runner_nonce where at < :before order by at limit :limit
);

-- name: see_runner
update runner set seen_at = :now, heard_at = coalesce(heard_at, :now) where workspace_id = :workspace and id = :id;

-- name: advance_runner
-- Only forward: a report that comes again, or late, changes nothing.
update runner set head = :sequence, seen_at = :now, heard_at = coalesce(heard_at, :now), ended_at = :ended_at,
ended_kind = :ended_kind, ended_code = :ended_code, limited_until = :limited_until
where workspace_id = :workspace and id = :id and head < :sequence and ended_at is null
returning head;

-- name: replace_token
-- For a later life of the same runner: whoever starts that no longer has the first one.
update runner set token_digest = :token_digest where workspace_id = :workspace and id = :id returning id;

-- name: number_command
-- The next number; none of one that has ended.
update runner set commands = commands + 1 where workspace_id = :workspace and id = :id and ended_at is null
returning commands;

-- name: add_command
insert into runner_command (runner_id, id, workspace_id, kind, key, created_at)
values (:runner, :id, :workspace, :kind, :key, :now);

-- name: command_by_key
select id, kind, key from runner_command where workspace_id = :workspace and runner_id = :runner and key = :key;

-- name: command
select id, kind, key from runner_command where workspace_id = :workspace and runner_id = :runner and id = :id;

-- name: commands_after
select id, kind, key from runner_command
where workspace_id = :workspace and runner_id = :runner and id > :after order by id limit :limit;

-- name: ack_commands
-- Only forward, and not behind what was given.
update runner set acked = :after
where workspace_id = :workspace and id = :id and acked < :after and commands >= :after;

-- name: open_asks
-- Those of a runner that wait for an answer, or have one that it was not given yet.
select id from keyed_call where workspace_id = :workspace and requester_kind = :kind and requester = :runner
and status = 'waiting' and not exists (
  select 1 from runner_command where runner_command.workspace_id = :workspace
  and runner_command.runner_id = :runner and runner_command.key = keyed_call.id
) order by id limit :limit;
