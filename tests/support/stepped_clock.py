"""A clock with waiting that moves only when told to. It must not let real time pass."""

from __future__ import annotations

import asyncio

from mesh.clock import ManualClock


class SteppedClock(ManualClock):
    """Those who sleep wake up when time is advanced past their end.

    Attributes:
        sleeps: how long each sleep was to be, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[float] = []
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    @property
    def waiting(self) -> list[float]:
        """Seconds until those who sleep now wake up, the soonest first."""
        return sorted(end - self.monotonic() for end, future in self._sleepers if not future.done())

    async def sleep(self, seconds: float) -> None:
        """Returns when so many seconds were advanced; at once for none."""
        self.sleeps.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.monotonic() + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        """Lets time pass and wakes those whose time has come."""
        super().advance(seconds)
        for end, future in self._sleepers:
            if end <= self.monotonic() + 1e-9 and not future.done():
                future.set_result(None)
        self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[1].done()]
