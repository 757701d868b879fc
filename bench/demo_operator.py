"""What an operator does in the demo: asks why somebody got nothing, and brings a dead letter back to its listener.

Goes the operator's way: to delivery's sidecar, with the certificate of the operator. Must not judge what it sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from bench import demo_letters, demo_wishes
from bench.demo_events import Mute
from bench.demo_ledger import Evidence, Ledger, Published
from bench.demo_letters import Refusing
from bench.demo_report import Teller
from heliograph.delivery.v1 import dead_letter_service_pb2
from heliograph_cli.connection import Connection, Reach, connect
from heliograph_client.publisher import Publisher
from mesh.ids import join_key

_ARRIVE_LIMIT_S = 30.0
_POLL_S = 0.005


class Operator:
    """Looks behind the scenes of one installation."""

    def __init__(
        self, folder: Path, tenant: str, *, store: Callable[[str], Refusing], ledger: Ledger, teller: Teller
    ) -> None:
        """Holds on to its parts.

        Args:
            folder: the state folder.
            tenant: whose events these are.
            store: returns the inbox store as it refuses one recipient.
            ledger: knows who got what.
            teller: tells who watches.
        """
        self._store = store
        self._folder = folder
        self._tenant = tenant
        self._ledger = ledger
        self._say = teller.say

    async def gather(self, mute: Mute | None, sdk: Publisher, listener: str, neighbour: str) -> Evidence:
        """Asks about the mute, and lets a notification of a listener become a dead letter and come back.

        Args:
            mute: the wish that was respected.
            sdk: publishes.
            listener: whose row is refused.
            neighbour: gets the same event, undisturbed.

        Raises:
            Failure: a call is refused.
        """
        async with connect(Reach(state_dir=self._folder)) as connection:
            explained = "" if mute is None else await self._explain(connection, mute)
            letter = await self._bury(connection, sdk, listener, neighbour)
            if letter is None:
                self._say("the refused row did not become a dead letter")
                return Evidence(explained)
            came = await self._redrive(connection, letter, listener)
        return Evidence(explained, demo_letters.reason_of(letter), came)

    async def _explain(self, connection: Connection, mute: Mute) -> str:
        ids = self._ledger.suppressed(mute.listener)
        if not ids:
            return ""
        found = await demo_wishes.explain(connection, self._tenant, mute.listener, ids[-1])
        self._say(f"why {mute.listener} did not get event {ids[-1]}, says Explain: {found or 'nothing is known'}")
        return found

    async def _bury(
        self, connection: Connection, sdk: Publisher, listener: str, neighbour: str
    ) -> dead_letter_service_pb2.DeadLetter | None:
        category, key = demo_letters.CATEGORY, join_key(self._tenant, listener)
        due = tuple(dict.fromkeys((listener, neighbour)))
        store = self._store(listener)
        with store.refusing():
            self._say(store.how)
            intended = time.monotonic()
            receipt = await sdk.publish(category=category, to=due, title="An invoice is ready", link="/invoices/1")
            self._ledger.publish(Published(receipt.event_id, category, due, intended, "SDK", timed=False))
            letter = await demo_letters.until_buried(connection, store, self._tenant, key, receipt.event_id)
        if letter is not None:
            reached = "has got its own" if self._ledger.is_shown(neighbour, receipt.event_id) else "has got nothing"
            self._say(
                f"{neighbour}, due the same event, {reached}; the refused row is tried four times, without the waits"
            )
            self._say(f"dead letter {letter.dead_letter_id}: {demo_letters.reason_of(letter)}, {_tries(letter)}")
        return letter

    async def _redrive(self, connection: Connection, letter: dead_letter_service_pb2.DeadLetter, listener: str) -> bool:
        """Says whether what was not shown before is shown and acked after the letter was redriven."""
        event_id = letter.envelope.event_id
        if self._ledger.is_shown(listener, event_id):
            self._say("the listener has what is a dead letter")
            return False
        began = time.monotonic()
        came = await demo_letters.redrive(connection, letter.dead_letter_id) and await self._arrives(listener, event_id)
        if came:
            taken = (time.monotonic() - began) * 1000
            self._say(f"the store takes it again and the letter is redriven: {listener} acked it {taken:.0f} ms later")
        else:
            self._say(f"the store takes it again and the letter is redriven, but {listener} does not have it")
        return came

    async def _arrives(self, listener: str, event_id: str) -> bool:
        end = time.monotonic() + _ARRIVE_LIMIT_S
        while not self._ledger.is_acked(listener, event_id):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return self._ledger.is_shown(listener, event_id)


def _tries(letter: dead_letter_service_pb2.DeadLetter) -> str:
    outcomes = sorted({attempt.outcome for attempt in letter.attempts})
    return f"{len(letter.attempts)} tries: {'; '.join(outcomes)}"
