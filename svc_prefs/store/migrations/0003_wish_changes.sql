-- The newest change of each recipient whose change is remembered.
create table wish_changes (
    number integer primary key,
    tenant_id text not null,
    recipient_id text not null,
    change_us integer not null,
    unique (tenant_id, recipient_id)
);

-- One row. Numbers begin at the time when the file was made, in microseconds, so that those of a file that was thrown away are too old
-- here, and those of here too new there.
create table wish_log (
    newest integer not null,    -- number of the newest change
    forgotten integer not null  -- changes up to here are not remembered
);
insert into wish_log
select now.micros, now.micros
from (select cast((julianday('now') - 2440587.5) * 86400000.0 as integer) * 1000 as micros) as now;
