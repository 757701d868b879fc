-- Up to which position this process has finished each lane it reads, and which lane that was.
create table positions(
  lane text primary key,
  epoch integer not null,
  position integer not null
) strict, without rowid;

-- Records that could not be understood.
create table parked(
  lane text not null,
  epoch integer not null,
  position integer not null,
  key blob not null,
  value blob not null,
  reason text not null,
  park_time real not null,
  primary key (lane, epoch, position)
) strict;
