-- name: raise_mark
-- The latest time that any server has seen, now at least.
insert into clock_mark (id, ms) values (1, :now)
on conflict (id) do update set ms = case when excluded.ms > clock_mark.ms then excluded.ms else clock_mark.ms end
returning ms;
