-- name: begun
-- The pack that was begun and not finished, where its pages are still there.
select first_seq, last_seq, attempt, plain_bytes from run_pack
where workspace_id = :workspace and run_id = :run and packed_at is null and exists (
  select 1 from content_page page where page.workspace_id = run_pack.workspace_id and page.owner = run_pack.run_id
  and page.stream = 'events' and page.last_seq = run_pack.last_seq
)
order by last_seq limit 1;

-- name: unpacked
-- The first pages that are in the database, each with the attempt that it is of.
select page.first_seq, page.last_seq, page.plain_bytes, coalesce(event.attempt, 0) as attempt
from content_page page left join run_event event
on event.workspace_id = page.workspace_id and event.run_id = page.owner and event.seq = page.first_seq
where page.workspace_id = :workspace and page.owner = :run and page.stream = 'events'
order by page.last_seq limit :limit;

-- name: intend
-- Before its blob is put; one that was begun stays as it is.
insert into run_pack (workspace_id, run_id, first_seq, last_seq, attempt, page, plain_bytes, encoding, blob, intended_at)
select cast(:workspace as text), cast(:run as text), cast(:first_seq as bigint), cast(:last_seq as bigint), cast(:attempt as bigint),
coalesce(max(page), 0) + 1, cast(:plain_bytes as bigint), cast(:encoding as text), cast(:blob as text), cast(:now as bigint)
from run_pack where workspace_id = :workspace and run_id = :run
on conflict (workspace_id, run_id, last_seq) do nothing;

-- name: note_packed
-- Its blob is there. Once.
update run_pack set bytes = :bytes, packed_at = :now
where workspace_id = :workspace and run_id = :run and last_seq = :last_seq and packed_at is null
returning last_seq;

-- name: pack_behind
-- The pack that has the next number above `after`, if a pack has it.
select first_seq, last_seq, plain_bytes, bytes, blob from run_pack
where workspace_id = :workspace and run_id = :run and last_seq > :after and packed_at is not null order by last_seq limit 1;
