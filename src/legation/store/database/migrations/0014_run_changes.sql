-- When something that is shown of a run changed last: servers tell their readers of it, whichever process wrote it.
alter table run add column changed_at {int} not null default 0;
create index run_changed on run (changed_at, id) where changed_at > 0;

-- Until when its agent waits for a usage limit of the provider to be over; null: it does not.
alter table runner add column limited_until {int};
