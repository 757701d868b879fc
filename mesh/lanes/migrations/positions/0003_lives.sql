-- How many processes in a row began to work on a lane and did not say that they end in order.
create table lives(
  lane text primary key,
  count integer not null
) strict, without rowid;
