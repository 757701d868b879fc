"""Presence in Redis, for several presence processes. Path step 6.

What is kept lies in *parts*, each with a hash tag of its own and complete in itself: every node's lease, the sessions
of the part's recipients, who was superseded, an incarnation. One server is one part; a Cluster has `PARTS`, spread over
its slots. A renewal writes every part, a report the parts of its recipients, each by an atomic script; a look-up is one
MGET a part, with the leases in it. A part that lost everything has a new incarnation, and nodes assert their sessions.

Times are those of one server's clock, as far as this process knows its distance: several processes share the leases,
and their monotonic clocks have nothing in common.

Must not be believed for ever: entries that are not asserted for a day run out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from mesh.clock import Clock
from mesh.errors import Unavailable
from mesh.redis import Argument, Call, Redis, Reply, parts_of_slots, slot_of
from mesh.telemetry import logger
from svc_presence.ports import NodeLease, Renewal, Report, Session
from svc_presence.store import redis_scripts as scripts

PARTS = 16
_MICROS = 1_000_000
# A clock's distance that took longer to measure is not believed.
_ROUND_TRIP_S = 0.1

# As the scripts pack them. Numbers that may be too large for Lua have nineteen digits.
_Lease: TypeAlias = tuple[str, int, int, int, int, str]
_Device: TypeAlias = tuple[str, str, str]
_Leases = msgspec.msgpack.Decoder(dict[str, _Lease])
_Entries = msgspec.msgpack.Decoder(tuple[str, dict[str, _Device]])
_Lost = msgspec.msgpack.Decoder(list[tuple[str, str, str]])


class _Part(msgspec.Struct):
    """One part: its keys, and what was last read of it."""

    tag: str
    leases_key: bytes
    superseded_key: bytes
    incarnation_key: bytes
    incarnation: bytes = b""
    packed_leases: bytes = b""
    leases: Mapping[str, _Lease] = {}

    def entry_key(self, recipient_key: str) -> bytes:
        """Returns the key of a recipient's sessions."""
        return f"{{{self.tag}}}:of:{recipient_key}".encode()


class RedisStore:
    """Implements `ports.PresenceStore`.

    Args:
        redis: the client; closed with the store.
        clock: whose monotonic time the callers pass.
        repeat_for: seconds; for how long what was superseded is told again.
    """

    def __init__(self, redis: Redis, *, clock: Clock, repeat_for: float) -> None:
        self._redis = redis
        self._clock = clock
        self._repeat_micros = round(repeat_for * _MICROS)
        tags = [redis.tag_within(part) for part in parts_of_slots(PARTS if redis.clustered else 1)]
        self._parts = [_Part(tag, *_keys(tag)) for tag in tags]
        # From monotonic seconds to the server's microseconds.
        self._distance = 0

    @property
    def incarnation(self) -> str:
        """Of all parts together, as they were last heard of."""
        whole = b"".join(part.incarnation for part in self._parts)
        return hashlib.blake2b(whole, digest_size=8).hexdigest()

    async def open(self) -> None:
        """Looks whether the servers are as they must be, and what time they have."""
        await self._redis.enter(bear_absence=False)
        await self._measure(any_round_trip=True)
        await self._enter()

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.close()

    async def ping(self) -> None:
        """Says whether Redis takes writes; takes its time again, and notices what a part has lost."""
        await self._redis.ping()
        await self._measure(any_round_trip=False)
        await self._enter()

    async def renew(self, lease: NodeLease, now: float) -> Renewal:
        """See the port; refused when one part refuses."""
        arguments: list[Argument] = [
            lease.node_id,
            _digits(lease.epoch),
            self._micros(now),
            self._micros(lease.expires),
            int(lease.draining),
            lease.session_count,
            lease.address,
            self._repeat_micros,
            secrets.token_hex(8),
        ]
        calls = [Call([part.leases_key, part.superseded_key, part.incarnation_key], arguments) for part in self._parts]
        superseded: list[Session] = []
        accepted = True
        for part, reply in zip(self._parts, await self._redis.run(scripts.RENEW, calls), strict=True):
            taken, part.incarnation, told = _answer(reply)
            accepted = accepted and taken == 1
            superseded += _sessions(told, lease.node_id)
        return Renewal(lease if accepted else None, superseded if accepted else ())

    async def report(
        self,
        node_id: str,
        epoch: int,
        *,
        joined: Sequence[Session],
        left: Sequence[Session],
        asserted: Sequence[Session],
        now: float,
    ) -> Report:
        """See the port; refused when one part refuses."""
        changes: dict[int, list[tuple[str, Session]]] = defaultdict(list)
        for kind, sessions in (("left", left), ("joined", joined), ("asserted", asserted)):
            for session in sessions:
                changes[self._place(session.recipient_key)].append((kind, session))
        if not changes:
            # Whether the lease lives is asked all the same.
            changes[0] = []
        arguments: list[Argument] = [node_id, _digits(epoch), self._micros(now)]
        calls = [self._report_call(self._parts[place], listed, arguments) for place, listed in changes.items()]
        superseded: list[Session] = []
        restored: list[Session] = []
        accepted = True
        for place, reply in zip(changes, await self._redis.run(scripts.REPORT, calls, repeat=False), strict=True):
            taken, incarnation, told, back = _report_answer(reply)
            self._parts[place].incarnation = incarnation
            accepted = accepted and taken == 1
            superseded += _sessions(told, node_id)
            restored += _sessions(back, node_id)
        return Report(accepted, superseded, restored) if accepted else Report(accepted=False)

    async def look_up(self, recipient_keys: Sequence[str], now: float) -> Sequence[Sequence[Session]]:
        """See the port."""
        places: dict[int, list[int]] = defaultdict(list)
        for index, key in enumerate(recipient_keys):
            places[self._place(key)].append(index)
        groups = [
            [self._parts[place].leases_key, *(self._parts[place].entry_key(recipient_keys[index]) for index in indexes)]
            for place, indexes in places.items()
        ]
        now_micros = self._micros(now)
        found: list[Sequence[Session]] = [()] * len(recipient_keys)
        for (place, indexes), values in zip(places.items(), await self._redis.read(groups), strict=True):
            leases = self._leases_of(self._parts[place], values[0])
            for index, value in zip(indexes, values[1:], strict=True):
                if value is not None:
                    found[index] = _living(recipient_keys[index], value, leases, now_micros)
        return found

    async def nodes(self, now: float) -> Sequence[NodeLease]:
        """See the port; as one part knows them."""
        ((packed,),) = await self._redis.read([[self._parts[0].leases_key]])
        now_micros = self._micros(now)
        leases = self._leases_of(self._parts[0], packed)
        return [
            NodeLease(node_id, int(epoch), bool(draining), count, address, (expires - self._distance) / _MICROS)
            for node_id, (epoch, begin, expires, draining, count, address) in sorted(leases.items())
            if begin - scripts.SET_BACK <= now_micros < expires
        ]

    async def sweep(self, now: float) -> int:
        """Has nothing to do: leases are forgotten at renewals, entries by their time to live."""
        return 0

    async def _enter(self) -> None:
        calls = [Call([part.incarnation_key], [secrets.token_hex(8)]) for part in self._parts]
        for part, reply in zip(self._parts, await self._redis.run(scripts.ENTER, calls), strict=True):
            if isinstance(reply, bytes):
                part.incarnation = reply

    def _place(self, recipient_key: str) -> int:
        if len(self._parts) == 1:
            return 0
        return slot_of(recipient_key.encode()) % len(self._parts)

    def _report_call(self, part: _Part, listed: Iterable[tuple[str, Session]], arguments: Sequence[Argument]) -> Call:
        keys: dict[str, int] = {}
        changes = [
            (
                keys.setdefault(session.recipient_key, len(keys)) + 1,
                kind,
                session.device_id,
                _digits(session.connect_number),
                session.node_id,
            )
            for kind, session in listed
        ]
        return Call(
            [part.leases_key, part.superseded_key, part.incarnation_key, *(part.entry_key(key) for key in keys)],
            [*arguments, msgspec.msgpack.encode((list(keys), changes))],
        )

    def _leases_of(self, part: _Part, packed: bytes | None) -> Mapping[str, _Lease]:
        """Returns the leases; they are the same as before most of the time."""
        if packed != part.packed_leases:
            part.leases = _Leases.decode(packed) if packed else {}
            part.packed_leases = packed or b""
        return part.leases

    def _micros(self, seconds: float) -> int:
        return round(seconds * _MICROS) + self._distance

    async def _measure(self, *, any_round_trip: bool) -> None:
        begin = self._clock.monotonic()
        server = await self._redis.time(self._parts[0].tag)
        end = self._clock.monotonic()
        if any_round_trip or end - begin <= _ROUND_TRIP_S:
            self._distance = round((server - (begin + end) / 2) * _MICROS)


def _keys(tag: str) -> tuple[bytes, bytes, bytes]:
    """Returns the keys of a part: leases, superseded, incarnation."""
    return f"{{{tag}}}:leases".encode(), f"{{{tag}}}:superseded".encode(), f"{{{tag}}}:incarnation".encode()


def _living(recipient_key: str, value: bytes, leases: Mapping[str, _Lease], now_micros: int) -> Sequence[Session]:
    """Returns the sessions of an entry that count now."""
    owner, devices = _Entries.decode(value)
    if owner != recipient_key:
        # Somebody else's answer: worse than none.
        logger().error("presence_of_another", asked=recipient_key, found=owner)
        return ()
    sessions = []
    for device_id, (number, node_id, epoch) in devices.items():
        lease = leases.get(node_id)
        if lease is not None and lease[0] == epoch and lease[1] - scripts.SET_BACK <= now_micros < lease[2]:
            sessions.append(Session(recipient_key, device_id, int(number), node_id))
    return sessions


def _digits(number: int) -> str:
    return f"{number:019d}"


def _sessions(packed: bytes, node_id: str) -> list[Session]:
    return [Session(key, device_id, int(number), node_id) for key, device_id, number in _Lost.decode(packed)]


def _answer(reply: Reply) -> tuple[int, bytes, bytes]:
    match reply:
        case [int(taken), bytes(incarnation), bytes(told)]:
            return taken, incarnation, told
        case _:
            raise _strange(reply)


def _report_answer(reply: Reply) -> tuple[int, bytes, bytes, bytes]:
    match reply:
        case [int(taken), bytes(incarnation), bytes(told), bytes(back)]:
            return taken, incarnation, told, back
        case _:
            raise _strange(reply)


def _strange(reply: Reply) -> Unavailable:
    return Unavailable(f"presence's script answers {reply!r}", reason="STORE_UNAVAILABLE")
