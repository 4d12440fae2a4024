-- name: bundles
-- The next bundles whose key an older vault key wraps; the body is not needed.
select id, workspace_id, owner, key_id, wrapped_key from vault_bundle
where key_id <> :current and id > :after order by id limit :limit;

-- name: rewrap_bundle
-- Only if nobody else was faster, or destroyed it.
update vault_bundle set key_id = :key_id, wrapped_key = :wrapped_key
where id = :id and workspace_id = :workspace and key_id = :former returning id;

-- name: content_keys
-- The next content keys that an older vault key wraps.
select workspace_id, owner, key_id, wrapped_key from content_key
where key_id <> :current and (workspace_id, owner) > (:workspace, :owner)
order by workspace_id, owner limit :limit;

-- name: rewrap_content_key
-- Only if nobody else was faster, or deleted it.
update content_key set key_id = :key_id, wrapped_key = :wrapped_key
where workspace_id = :workspace and owner = :owner and key_id = :former returning owner;
