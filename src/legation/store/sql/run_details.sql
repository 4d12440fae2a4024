-- name: attempts
select number, machine, created_at, handed_at, ended_at, error_class, error_code from run_attempt
where workspace_id = :workspace and run_id = :run order by number;

-- name: resources
select name, attempt, kind, state, intended_at, made_at, gone_at from run_resource
where workspace_id = :workspace and run_id = :run order by attempt, kind, name;

-- name: cleanups
select name, number, status, error_code, error_reason, at from cleanup_attempt
where workspace_id = :workspace and run_id = :run order by name, number;

-- name: costs [sqlite]
-- What each run of a list has cost: ids in JSON.
select run_id, sum(amount) as amount from usage_ledger
where workspace_id = :workspace and run_id in (select value from json_each(:ids)) and kind = 'cost_microusd' group by run_id;

-- name: costs [postgres]
select run_id, sum(amount) as amount from usage_ledger
where workspace_id = :workspace and run_id = any (array(select json_array_elements_text(cast(:ids as json))))
and kind = 'cost_microusd' group by run_id;
