-- Events of runs that have ended, in sealed blobs: which numbers are in which, and how large they are. A row is written before its blob
-- is put; with `packed_at`, in one transaction, the pages that it holds leave the database. Until then they count, and it does not.
create table run_pack (
  workspace_id text not null,
  run_id text not null,
  first_seq {int} not null,
  last_seq {int} not null,
  attempt {int} not null,
  page {int} not null, -- numbered from 1, over all attempts
  plain_bytes {int} not null,
  encoding text not null, -- of what is sealed
  blob text not null,
  bytes {int}, -- of the blob
  intended_at {int} not null,
  packed_at {int},
  primary key (workspace_id, run_id, last_seq),
  foreign key (workspace_id, run_id) references run (workspace_id, id) on delete cascade
) {options};

-- Runs that have ended stand in the queue of what is to be packed: those of before, too.
update run set machine = '~packs', next_check_at = ended_at
where ended_at is not null and exists (
  select 1 from content_page page where page.workspace_id = run.workspace_id and page.owner = run.id and page.stream = 'events'
);
