"""The request log in Redis, for several ingest processes. Path step 2.

One value a request, and a request is forgotten by its time to live. A fail-over may lose the last writes and a flush
all of them: then a repeat is appended a second time, under the same id.

Must not be asked to prove anything: the lanes are the truth, this is a memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from mesh import ids
from mesh.errors import Unavailable
from mesh.redis import Argument, Call, Redis, Reply, Script
from svc_ingest import limits
from svc_ingest.ports import Answer, Claim, Done, Fresh, Known, Pending

_MICROS = 1_000_000
_LEASE = round(limits.REQUEST_LEASE_S * _MICROS)
# A clock that was set back further than this makes a lease end rather than live on.
_SET_BACK = _MICROS
_KEEP_MS = limits.REQUEST_LOG_S * 1_000
_DIGEST_BYTES = 32

# Values: P, begin in µs, the id's time in ms, digest, holder; D, acceptance in µs, digest, event id. Numbers have
# sixteen digits. A claim met by its own value has won it before: a script may run twice.
_BEGIN = Script(f"""
local now, lease, set_back, keep = tonumber(ARGV[1]), {_LEASE}, {_SET_BACK}, {_KEEP_MS}
local found = {{}}
for i, key in ipairs(KEYS) do
  local mine, known = ARGV[1 + i], redis.call('GET', key)
  found[i] = known
  if not known then
    found[i] = false
  elseif known:sub(1, 1) == 'P' then
    local elapsed = now - tonumber(known:sub(2, 17))
    if known:sub(66) == mine:sub(66) then
      found[i], mine = 'F' .. known:sub(18, 33), known
    elseif elapsed < -set_back or elapsed >= lease then
      if known:sub(34, 65) == mine:sub(34, 65) then
        mine = mine:sub(1, 17) .. known:sub(18, 33) .. mine:sub(34)
      end
      found[i] = false
    end
  end
  if not found[i] then
    redis.call('SET', key, mine, 'PX', keep)
    found[i] = 'F' .. mine:sub(18, 33)
  end
end
return found
""")
_FINISH = Script(f"""
for i, key in ipairs(KEYS) do
  local known = redis.call('GET', key)
  if not known then
    redis.call('SET', key, ARGV[i], 'PX', {_KEEP_MS})
  elseif known:sub(1, 1) == 'P' then
    redis.call('SET', key, ARGV[i], 'KEEPTTL')
  end
end
""")
_RELEASE = Script("""
for i, key in ipairs(KEYS) do
  local known = redis.call('GET', key)
  if known and known:sub(1, 1) == 'P' and known:sub(66) == ARGV[i] then
    redis.call('DEL', key)
  end
end
""")


class RedisRequestLog:
    """`RequestLog` in Redis.

    Args:
        redis: the client; closed with the log.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._prefix = f"{redis.prefix}:request:".encode()

    async def open(self) -> None:
        """Refuses a server that is not as it must be; one that is away is borne: publishing goes on without it."""
        await self._redis.enter(bear_absence=True)

    async def ping(self) -> None:
        """Says whether Redis takes writes."""
        await self._redis.ping()

    async def begin(self, claims: Sequence[Claim], now: float) -> Sequence[Known]:
        """Claims requests in one step for each slot."""
        now_micros = round(now * _MICROS)
        keys = [self._key(claim) for claim in claims]
        # Of claims on one request the first is asked for, and the others see what it got.
        first = {key: index for index, key in reversed(list(enumerate(keys)))}
        asked = sorted(first.values())
        replies = await self._run(
            _BEGIN,
            [keys[index] for index in asked],
            lambda place: _pending(claims[asked[place]], now_micros),
            now_micros,
        )
        known = {index: _known(reply, now_micros) for index, reply in zip(asked, replies, strict=True)}
        return [known[index] if first[key] == index else _beside(known[first[key]]) for index, key in enumerate(keys)]

    async def finish(self, answers: Sequence[Answer]) -> None:
        """Makes requests done in one step for each slot."""
        first: dict[bytes, Answer] = {}
        for answer in answers:
            first.setdefault(self._key(answer.claim), answer)
        values = [_done(answer) for answer in first.values()]
        await self._run(_FINISH, list(first), lambda place: values[place])

    async def release(self, claims: Sequence[Claim]) -> None:
        """Forgets what these holders still hold."""
        await self._run(_RELEASE, [self._key(claim) for claim in claims], lambda place: claims[place].holder)

    async def sweep(self, before: float, limit: int) -> int:
        """Has nothing to do: a request's time to live begins with its last lease."""
        return 0

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.close()

    async def _run(
        self, script: Script, keys: Sequence[bytes], value: Callable[[int], bytes], *shared: Argument
    ) -> list[Reply]:
        """Runs a script for keys, those of one slot together; returns a reply for each key, or as many of nothing."""
        groups: dict[int, list[int]] = {}
        for place, slot in enumerate(self._redis.slots_of(keys)):
            groups.setdefault(slot, []).append(place)
        calls = [
            Call([keys[place] for place in places], [*shared, *(value(place) for place in places)])
            for places in groups.values()
        ]
        found: list[Reply] = [None] * len(keys)
        for places, replies in zip(groups.values(), await self._run_calls(script, calls), strict=True):
            if isinstance(replies, list):
                for place, reply in zip(places, replies, strict=True):
                    found[place] = reply
        return found

    async def _run_calls(self, script: Script, calls: Sequence[Call]) -> list[Reply]:
        return await self._redis.run(script, calls) if calls else []

    def _key(self, claim: Claim) -> bytes:
        return b"".join((self._prefix, _join(claim.tenant_id, claim.producer_id), b":", claim.request_id))


@lru_cache(maxsize=1024)
def _join(tenant_id: str, producer_id: str) -> bytes:
    # Producers are few.
    return ids.join_key(tenant_id, producer_id).encode()


def _pending(claim: Claim, now_micros: int) -> bytes:
    return b"P%016d%016d%b%b" % (now_micros, claim.id_time_ms, _digest(claim), claim.holder)


def _done(answer: Answer) -> bytes:
    return b"D%016d%b%b" % (answer.accept_micros, _digest(answer.claim), answer.event_id)


def _digest(claim: Claim) -> bytes:
    if len(claim.digest) != _DIGEST_BYTES:
        raise ValueError(f"a digest has {_DIGEST_BYTES} bytes, not {len(claim.digest)}")
    return claim.digest


def _known(reply: Reply, now_micros: int) -> Known:
    if not isinstance(reply, bytes):
        raise Unavailable(f"the request log answers {reply!r}", reason="STORE_UNAVAILABLE")
    number = int(reply[1:17])
    match reply[:1]:
        case b"F":
            return Fresh(number)
        case b"P":
            return Pending(min(_LEASE, _LEASE - (now_micros - number)) / _MICROS)
        case _:
            return Done(reply[17:49], reply[49:], number)


def _beside(known: Known) -> Known:
    """Returns what the next claim on the same request finds, in the same call."""
    return Pending(limits.REQUEST_LEASE_S) if isinstance(known, Fresh) else known
