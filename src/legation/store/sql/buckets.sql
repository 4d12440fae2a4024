-- name: level
-- How full it was, and when that was.
select tokens, updated_at from bucket where workspace_id = :workspace and name = :name;

-- name: set_level
-- The new level of one that is there or not.
insert into bucket (workspace_id, name, tokens, updated_at, full_at)
values (:workspace, :name, :tokens, :updated_at, :full_at)
on conflict (workspace_id, name) do update
set tokens = excluded.tokens, updated_at = excluded.updated_at, full_at = excluded.full_at;

-- name: forget_full
-- A full bucket is as good as none. In batches, so that a long list holds nobody up.
delete from bucket where (workspace_id, name) in (
  select workspace_id, name from bucket where full_at <= :now limit :limit
) returning name;
