-- name: record
-- Only the first one counts: whoever comes later is compared with it.
insert into key_check (name, value, created_at) values (:name, :value, :now) on conflict (name) do nothing;

-- name: find
-- What the key was when it was recorded.
select value from key_check where name = :name;

-- name: replace
-- After a rotation: the current key is the one to know again.
update key_check set value = :value, created_at = :now where name = :name;
