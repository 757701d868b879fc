-- How far the work on a record has come that takes many steps; gone once its position is committed.
create table notes(
  lane text not null,
  epoch integer not null,
  position integer not null,
  note blob not null,
  primary key (lane, epoch, position)
) strict;
