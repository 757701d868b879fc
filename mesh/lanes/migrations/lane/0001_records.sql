-- Positions grow by one: the newest record is never removed, so max + 1 is never a number that was used before.
-- The time stands before the bytes so that a trim does not walk through them.
create table records(
  position integer primary key,
  append_time real not null,
  key blob not null,
  value blob not null
) strict;

-- Tells this lane from another one made later under the same name, whose positions start again.
create table lane(epoch integer not null) strict;
insert into lane(epoch) values (random() & 9223372036854775807);
