-- name: put
-- A sealed bundle; its id, workspace and owner are bound into what is sealed.
insert into vault_bundle (id, workspace_id, owner, key_id, wrapped_key, body, created_at)
values (:id, :workspace, :owner, :key_id, :wrapped_key, :body, :now);

-- name: find
-- Of this workspace and this owner, or of nobody.
select key_id, wrapped_key, body from vault_bundle
where id = :id and workspace_id = :workspace and owner = :owner;

-- name: destroy
-- The row is all there is of it.
delete from vault_bundle where id = :id and workspace_id = :workspace and owner = :owner returning id;

-- name: destroy_all
-- Every bundle of an owner, at its cleanup.
delete from vault_bundle where workspace_id = :workspace and owner = :owner returning id;

-- name: keys_in_use
-- How much is sealed with each vault key, bundles and content keys together.
select key_id, count(*) as uses from (
  select key_id from vault_bundle union all select key_id from content_key
) as sealed group by key_id;

-- name: keys_named
-- Which vault keys anything is sealed with: one step through the index for each, however much it is.
with recursive found (key_id) as (
  select min(key_id) from (
    select min(key_id) as key_id from vault_bundle union all select min(key_id) from content_key
  ) as sealed
  union all
  select (select min(key_id) from (
    select min(key_id) as key_id from vault_bundle where vault_bundle.key_id > found.key_id
    union all select min(key_id) from content_key where content_key.key_id > found.key_id
  ) as sealed) from found where found.key_id is not null
) select key_id from found where key_id is not null;
