-- name: held
-- All that is counted of an agent: its limits are looked at together.
select policy, what, value from counter where workspace_id = :workspace and agent = :agent;

-- name: put
-- The new value of one that still has the `former` one, or that was not there and is not.
insert into counter (workspace_id, agent, policy, what, value, until)
values (:workspace, :agent, :policy, :what, :value, :until)
on conflict (workspace_id, agent, policy, what) do update set value = excluded.value, until = excluded.until
where counter.value = :former returning what;

-- name: forget
-- What counts no more is as good as none. In batches, so that a long list holds nobody up.
delete from counter where (workspace_id, agent, policy, what) in (
  select workspace_id, agent, policy, what from counter where until <= :now limit :limit
) returning what;
