-- What is kept for how long.

-- A step that says what was cut off before it: JSON with the first and the last number, their times, and the hash that
-- the first step which is left follows.
alter table trace_step add column cut text;

-- Content that is being purged: nobody sees it any more, and it goes row by row, the key last.
alter table content_key add column purged_at {int};
create index content_key_purged on content_key (workspace_id, owner) where purged_at is not null;
