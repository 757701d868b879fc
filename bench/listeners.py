"""Many listening sessions in one process: the receiving half of a load, lean enough not to be what is measured.

Run as `python -m bench.listeners`, told what to do by JSON lines on standard input: an order first, then commands.
Prints a JSON line when the first sessions are connected ("ready"), one as answer to each command, and one with the
results at the end of input. A session acks every notification at once, over the binary subprotocol, and comes back as
the client library does: with its cursor, after a wait with full jitter. Latencies run from the intended time in the
content (µs of CLOCK_MONOTONIC) to the receipt, and to the confirmation of the stored ack.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import random
import socket
import sys

import msgspec

from bench.session import LARGEST_RETURN, Order, Session, Tally

__all__ = ["Command", "Order", "Report", "Result"]

# Reader sockets of frozen sessions: small, so that what is not read piles up at the server and not in the kernel.
_FROZEN_BUFFER = 4_096


class Command(msgspec.Struct, frozen=True):
    """What the process is told later; it answers "ready", or with a `Report`.

    Attributes:
        more: connect so many of the sessions that are left.
        freeze: so many sessions stop reading.
        forget: leave out of the results what was seen so far.
        report: say what was seen so far.
    """

    more: int = 0
    freeze: int = 0
    forget: bool = False
    report: bool = False


class Report(msgspec.Struct, frozen=True):
    """What is seen while the sessions go on.

    Attributes:
        open: sessions that are caught up now.
        received: notifications so far.
        confirmed: acks so far.
        lost: connections that ended, whoever ended them.
        lost_again: those of sessions that had come back before.
        tries: connections that were tried to come back.
        turned_away: of these, those that were answered "not now".
        returns: µs of the clock at which each lost session was back and caught up.
    """

    open: int
    received: int
    confirmed: int
    lost: int
    lost_again: int
    tries: int
    turned_away: int
    returns: list[int]


class Result(msgspec.Struct, frozen=True):
    """What was seen in the end.

    Attributes:
        received: notifications, each (recipient, id) once.
        duplicates: the same one again.
        receipts: µs from intended time to receipt.
        acks: µs from intended time to the confirmed ack.
        closed: sessions that ended before their time.
        returned: of these, those that were back and caught up.
        by_category: where asked for, intended time and latency in turn, µs.
    """

    received: int
    duplicates: int
    receipts: list[int]
    acks: list[int]
    closed: int
    returned: int = 0
    by_category: dict[str, list[int]] = {}


class Listeners:
    """All sessions of the process."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tally = Tally()
        self._waiting = list(enumerate(order.sessions))
        self._sessions: list[Session] = []
        self._chance = random.Random(1)
        self._room = asyncio.Semaphore(LARGEST_RETURN)

    async def connect(self, count: int) -> None:
        """Connects the next so many sessions at the pace that was asked for."""
        loop = asyncio.get_running_loop()
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        async with asyncio.TaskGroup() as group:
            began = loop.time()
            for number, (index, (device_id, token)) in enumerate(chosen):
                session = Session(self._order, index, device_id, token, self._tally, loop)
                self._sessions.append(session)
                await self._room.acquire()
                group.create_task(session.connect()).add_done_callback(lambda _: self._room.release())
                ahead = began + (number + 1) / self._order.pace - loop.time()
                if ahead > 0:
                    await asyncio.sleep(ahead)

    def freeze(self, count: int) -> None:
        """Has some of the sessions stop reading."""
        for session in self._chance.sample(self._sessions, count):
            session.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _FROZEN_BUFFER)
            session.transport.pause_reading()

    async def carry_out(self, command: Command) -> bytes:
        """Does what a command says; returns the answer."""
        if command.more:
            await self.connect(command.more)
        if command.freeze:
            self.freeze(command.freeze)
        if command.forget:
            self._tally.receipts, self._tally.acks = array.array("q"), array.array("q")
        return msgspec.json.encode(self.report()) if command.report else b'"ready"'

    def report(self) -> Report:
        """Returns what was seen so far."""
        tally = self._tally
        return Report(
            open=sum(session.caught_up for session in self._sessions),
            received=tally.received,
            confirmed=len(tally.acks),
            lost=tally.lost,
            lost_again=tally.lost_again,
            tries=tally.tries,
            turned_away=tally.turned_away,
            returns=tally.returns.tolist(),
        )

    def result(self) -> Result:
        """Returns what was seen in the end."""
        tally = self._tally
        return Result(
            received=tally.received,
            duplicates=tally.duplicates,
            receipts=tally.receipts.tolist(),
            acks=tally.acks.tolist(),
            closed=tally.lost,
            returned=len(tally.returns),
            by_category={name: times.tolist() for name, times in tally.by_category.items()},
        )


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


async def run() -> None:
    """Connects, says so, listens and obeys until the input ends, and prints what was seen."""
    order = msgspec.json.decode(await asyncio.to_thread(sys.stdin.buffer.readline), type=Order)
    crowd = Listeners(order)
    await crowd.connect(len(order.sessions) if order.first is None else order.first)
    crowd.freeze(order.frozen)
    _print(b'"ready"')
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        _print(await crowd.carry_out(msgspec.json.decode(line, type=Command)))
    _print(msgspec.json.encode(crowd.result()))


def main() -> None:
    """Runs the process."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(run())


if __name__ == "__main__":
    main()
