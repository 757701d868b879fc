-- Ids are compared by their bytes, whatever the locale of the database: pages are cut by these comparisons.
create table preferences (
    tenant_id text collate "C" not null,
    recipient_id text collate "C" not null,
    version bigint not null,
    preferences bytea not null,
    primary key (tenant_id, recipient_id)
);

-- Both ways in key order; the index has all columns of the key, so the pages of a topic are read from it alone.
create table subscriptions (
    tenant_id text collate "C" not null,
    recipient_id text collate "C" not null,
    topic_id text collate "C" not null,
    create_us bigint not null,
    primary key (tenant_id, recipient_id, topic_id)
);

create index subscribers on subscriptions (tenant_id, topic_id, recipient_id);

-- The newest change of each recipient whose change is remembered.
create table wish_changes (
    number bigint primary key,
    tenant_id text collate "C" not null,
    recipient_id text collate "C" not null,
    change_us bigint not null,
    unique (tenant_id, recipient_id)
);

-- One row. Numbers begin at the time when the schema was made, in microseconds, so that those of a schema that was
-- thrown away are too old here, and those of here too new there. The row is rewritten with each change: room in its
-- page keeps that from growing the table.
create table wish_log (
    only_row boolean primary key default true check (only_row),
    newest bigint not null,     -- number of the newest change
    forgotten bigint not null,  -- changes up to here are not remembered
    incarnation text not null   -- of the server that gave the numbers out; see begin_incarnation
) with (fillfactor = 20);

insert into wish_log (newest, forgotten, incarnation)
select micros, micros, '' from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as micros) as now;

-- Writes choices, and logs the change, if nobody else changed them since they were read.
--
-- Numbers are given out under the lock of the log's row, which is held until the commit: a change with a smaller number
-- is committed before a larger one exists, so whoever read up to a number has missed nothing below it. A sequence would
-- give numbers out in another order than that of the commits.
create function replace_preferences(
    given_tenant text, given_recipient text, given_version bigint, given_preferences bytea,
    now_us bigint, most_count bigint, most_age_us bigint
) returns boolean language plpgsql as $$
declare
    change bigint;
    last bigint;
begin
    if given_version = 1 then
        insert into preferences (tenant_id, recipient_id, version, preferences)
        values (given_tenant, given_recipient, given_version, given_preferences) on conflict do nothing;
    else
        update preferences set version = given_version, preferences = given_preferences
        where tenant_id = given_tenant and recipient_id = given_recipient and version = given_version - 1;
    end if;
    if not found then
        return false;
    end if;
    update wish_log set newest = newest + 1 returning newest into change;
    -- Takes the place of the same recipient's earlier change.
    insert into wish_changes (number, tenant_id, recipient_id, change_us)
    values (change, given_tenant, given_recipient, now_us)
    on conflict (tenant_id, recipient_id) do update set number = excluded.number, change_us = excluded.change_us;
    -- One change adds at most one: a few at a time catch up with any backlog. What is forgotten is a beginning of the
    -- log, and the search begins behind it, not among its dead entries.
    with oldest as (
        select number, change_us from wish_changes
        where number > (select forgotten from wish_log) order by number limit 8
    ), kept as (
        select min(number) as first from oldest where number > change - most_count and change_us >= now_us - most_age_us
    )
    select max(number) into last from oldest, kept where kept.first is null or number < kept.first;
    if last is not null then
        delete from wish_changes where number > (select forgotten from wish_log) and number <= last;
        update wish_log set forgotten = last;
    end if;
    return true;
end
$$;

-- Told by each connection which server it reached. After a fail-over to a copy that lacked the newest changes, or from
-- a backup, the log would give their numbers out again, and whoever has them would miss what they now stand for: it
-- goes on far above them and forgets what was before.
create function begin_incarnation(reached text) returns void language sql as $$
    update wish_log set incarnation = reached,
        newest = case when incarnation = '' then newest else above end,
        forgotten = case when incarnation = '' then forgotten else above end
    from (
        select greatest(newest + 1000000, (extract(epoch from clock_timestamp()) * 1000000)::bigint) as above
        from wish_log
    ) as next
    where incarnation <> reached
$$;

-- Subscribes and returns what is stored of it; one row of nulls, and nothing stored, when the recipient would have more
-- than `most`. Whoever counts and then adds must be alone with this recipient.
create function subscribe(given_tenant text, given_recipient text, given_topics text[], now_us bigint, most bigint)
returns table (topic_id text, create_us bigint) language plpgsql as $$
#variable_conflict use_column
declare
    fresh bigint;
    had bigint;
begin
    perform lock_recipient(given_tenant, given_recipient);
    select count(distinct asked) into fresh from unnest(given_topics) as asked where not exists (
        select from subscriptions
        where tenant_id = given_tenant and recipient_id = given_recipient and topic_id = asked
    );
    if fresh > 0 then
        select count(*) into had from subscriptions where tenant_id = given_tenant and recipient_id = given_recipient;
        if had + fresh > most then
            return query select null::text, null::bigint;
            return;
        end if;
        insert into subscriptions (tenant_id, recipient_id, topic_id, create_us)
        select given_tenant, given_recipient, asked, now_us from unnest(given_topics) as asked on conflict do nothing;
    end if;
    return query
        select topic_id, create_us from subscriptions
        where tenant_id = given_tenant and recipient_id = given_recipient and topic_id = any (given_topics)
        order by topic_id;
end
$$;

-- Ends subscriptions and returns how many there were.
create function unsubscribe(given_tenant text, given_recipient text, given_topics text[])
returns bigint language plpgsql as $$
declare
    ended bigint;
begin
    perform lock_recipient(given_tenant, given_recipient);
    delete from subscriptions
    where tenant_id = given_tenant and recipient_id = given_recipient and topic_id = any (given_topics);
    get diagnostics ended = row_count;
    return ended;
end
$$;

-- Held until the end of the transaction.
create function lock_recipient(given_tenant text, given_recipient text) returns void language sql as $$
    select pg_advisory_xact_lock(
        hashtextextended(current_schema() || E'\n' || given_tenant || E'\n' || given_recipient, 0)
    )
$$;
