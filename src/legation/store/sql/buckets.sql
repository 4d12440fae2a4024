-- name: level
-- How full it was, and when that was.
select tokens, updated_at from bucket where workspace_id = :workspace and name = :name;

-- name: set_level
-- The new level of one that is as it was read, or that was not there and is not: `former` is how full it was, and when.
insert into bucket (workspace_id, name, tokens, updated_at, full_at)
values (:workspace, :name, :tokens, :updated_at, :full_at)
on conflict (workspace_id, name) do update
set tokens = excluded.tokens, updated_at = excluded.updated_at, full_at = excluded.full_at
where bucket.tokens = :former and bucket.updated_at = :former_at returning name;

-- name: forget_full
-- A full bucket is as good as none. In batches, so that a long list holds nobody up.
delete from bucket where (workspace_id, name) in (
  select workspace_id, name from bucket where full_at <= :now limit :limit
) returning name;
