"""Presence in this process's memory: the embedded store.

Soft state by nature: after a restart the incarnation differs and every node asserts its sessions again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from svc_presence.ports import NodeLease, Renewal, Report, Session

# An ended lease is remembered for so many lease times: an old process that wakes up is still refused.
_REMEMBERED_LEASES = 40


class _Entry(msgspec.Struct, frozen=True, gc=False):
    session: Session
    epoch: int


class MemoryStore:
    """Implements `ports.PresenceStore`; every method runs without an await inside, so it is atomic on the loop."""

    def __init__(self, *, repeat_for: float) -> None:
        self._incarnation = secrets.token_hex(8)
        self._repeat_for = repeat_for
        self._leases: dict[str, NodeLease] = {}
        # recipient key -> device -> entry
        self._entries: dict[str, dict[str, _Entry]] = {}
        # node -> (time, session) of sessions that another node's newer one replaced
        self._superseded: dict[str, list[tuple[float, Session]]] = {}

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    @property
    def incarnation(self) -> str:
        """Drawn anew with each process."""
        return self._incarnation

    async def renew(self, lease: NodeLease, now: float) -> Renewal:
        """See the port."""
        known = self._leases.get(lease.node_id)
        if known is not None:
            ended = known.expires <= now and known.epoch == lease.epoch
            if known.epoch > lease.epoch or ended:
                return Renewal(None, ())
        self._leases[lease.node_id] = lease
        return Renewal(lease, self._take_superseded(lease.node_id, now))

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
        """See the port."""
        if not self._lives(node_id, epoch, now):
            return Report(accepted=False)
        for session in left:
            self._remove(session)
        superseded: list[Session] = []
        for session in joined:
            self._put(session, epoch, now, superseded)
        restored = [session for session in asserted if self._put(session, epoch, now, superseded)]
        return Report(accepted=True, superseded=superseded, restored=restored)

    async def look_up(self, recipient_keys: Sequence[str], now: float) -> Sequence[Sequence[Session]]:
        """See the port."""
        found: list[Sequence[Session]] = []
        for key in recipient_keys:
            devices = self._entries.get(key)
            if devices is None:
                found.append(())
            else:
                found.append(
                    [
                        entry.session
                        for entry in devices.values()
                        if self._lives(entry.session.node_id, entry.epoch, now)
                    ]
                )
        return found

    async def nodes(self, now: float) -> Sequence[NodeLease]:
        """See the port."""
        return sorted((one for one in self._leases.values() if one.expires > now), key=lambda one: one.node_id)

    async def sweep(self, now: float) -> int:
        """See the port."""
        forgotten = now - _REMEMBERED_LEASES * self._repeat_for
        for node_id in [one.node_id for one in self._leases.values() if one.expires <= forgotten]:
            del self._leases[node_id]
            self._superseded.pop(node_id, None)
        dropped = 0
        for key in list(self._entries):
            devices = self._entries[key]
            kept = {name: entry for name, entry in devices.items() if self._may_return(entry)}
            dropped += len(devices) - len(kept)
            if not kept:
                del self._entries[key]
            elif len(kept) < len(devices):
                self._entries[key] = kept
        return dropped

    def _put(self, session: Session, epoch: int, now: float, superseded: list[Session]) -> bool:
        """Writes an entry unless a newer one stands; says whether it did not count before."""
        devices = self._entries.setdefault(session.recipient_key, {})
        known = devices.get(session.device_id)
        if known is not None:
            lives = self._lives(known.session.node_id, known.epoch, now)
            if known.session == session:
                devices[session.device_id] = _Entry(session, epoch)
                return not lives or known.epoch != epoch
            if lives and known.session.connect_number > session.connect_number:
                superseded.append(session)
                return False
            if known.session.node_id == session.node_id:
                superseded.append(known.session)
            elif lives:
                self._superseded.setdefault(known.session.node_id, []).append((now, known.session))
        devices[session.device_id] = _Entry(session, epoch)
        return True

    def _remove(self, session: Session) -> None:
        devices = self._entries.get(session.recipient_key)
        if devices is None:
            return
        known = devices.get(session.device_id)
        if known is not None and known.session == session:
            del devices[session.device_id]
            if not devices:
                del self._entries[session.recipient_key]

    def _take_superseded(self, node_id: str, now: float) -> Sequence[Session]:
        waiting = [one for one in self._superseded.pop(node_id, ()) if one[0] + self._repeat_for > now]
        if waiting:
            self._superseded[node_id] = waiting
        return [session for _, session in waiting]

    def _lives(self, node_id: str, epoch: int, now: float) -> bool:
        lease = self._leases.get(node_id)
        return lease is not None and lease.epoch == epoch and lease.expires > now

    def _may_return(self, entry: _Entry) -> bool:
        lease = self._leases.get(entry.session.node_id)
        return lease is not None and lease.epoch == entry.epoch
