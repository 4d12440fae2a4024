-- name: tables [sqlite]
-- Bytes of each table with its indexes. It looks at every page of the file, a row each: so it can be stopped in a large one.
select m.tbl_name as name, sum(s.pgsize) as bytes from sqlite_master m cross join dbstat s on s.name = m.name
group by m.tbl_name;

-- name: tables [postgres]
-- Bytes of each table with its indexes.
select c.relname as name, pg_total_relation_size(c.oid) as bytes from pg_class c
where c.relnamespace = cast('legation' as regnamespace) and c.relkind = 'r';

-- name: free [sqlite]
-- Bytes that are free in the file, where they can be given back.
select case when auto_vacuum > 0 then freelist_count * page_size else 0 end as bytes
from pragma_freelist_count, pragma_page_size, pragma_auto_vacuum;

-- name: free [postgres]
-- Postgres keeps its own house.
select 0 as bytes;

-- name: give_back [sqlite]
-- One page of it goes back to the disk: Python ends the statement after the first, whatever number is given.
pragma incremental_vacuum(1);

-- name: give_back [postgres]
-- Postgres keeps its own house.
select 0 as bytes;
