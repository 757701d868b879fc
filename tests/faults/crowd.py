"""Thousands of devices on a cluster, lean enough that they are not what is measured: the sessions of the benchmarks.

They run in a process of their own, ack what comes and come back as the client library does. What they see is counted
and not written down, so the checker does not judge it: the few devices of a run are beside them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bench.crowd import Crowd
from bench.listeners import Order, Report
from mesh.tokens import TokenSigner
from tests.support.cluster import TENANT, Cluster
from tests.support.wait import until

_TOKEN_LIFE_S: Final = 3600.0
_PACE: Final = 120.0
_LIMIT_S: Final = 60.0


class Devices:
    """A crowd of devices, one for each recipient; `connected` makes it.

    Attributes:
        recipients: who they are.
    """

    def __init__(self, crowd: Crowd, recipients: Sequence[str]) -> None:
        self.recipients = recipients
        self._crowd = crowd

    async def report(self) -> Report:
        """Returns what they have seen so far."""
        return await asyncio.to_thread(self._crowd.report)

    async def back(self, share: float) -> Report:
        """Waits until this share of those that were lost is back; returns what was seen by then."""
        report = await self.report()

        async def they_are() -> bool:
            nonlocal report
            report = await self.report()
            return 0 < report.lost * share <= len(report.returns)

        try:
            await until(they_are, _LIMIT_S, f"{share:.0%} of those who were lost are back")
        except AssertionError as error:
            raise AssertionError(f"{error}: {msgspec.structs.replace(report, returns=[])}") from None
        return report

    async def received(self, count: int) -> None:
        """Waits until all together got so many notifications."""

        async def they_have() -> bool:
            return (await self.report()).received >= count

        await until(they_have, _LIMIT_S, f"{count} notifications have come")


@asynccontextmanager
async def connected(cluster: Cluster, count: int, *, prefix: str) -> AsyncIterator[Devices]:
    """Connects so many devices and ends them with the context.

    Without an edge all are at the first node, and those that it loses try every node; else the edge deals them out.

    Args:
        cluster: where; everything runs.
        count: how many.
        prefix: of their recipients' ids.
    """
    signer, now = TokenSigner(cluster.place.token_key), time.time()
    recipients = [f"{prefix}{number}" for number in range(count)]
    edge = cluster.running.edge
    nodes = [url.split("/")[2] for url in cluster.running.live_urls.values()]
    order = Order(
        targets=[edge or nodes[0]],
        server_name="localhost" if edge else "",
        ca_file=str(cluster.place.certs / "ca" / "bundle.pem") if edge else "",
        sessions=[("phone", signer.sign(name, TENANT, "recipient", _TOKEN_LIFE_S, now)) for name in recipients],
        pace=_PACE,
        returns=True,
        elsewhere=[edge] if edge else nodes,
    )
    with Crowd(order) as crowd:
        await asyncio.to_thread(crowd.wait)
        yield Devices(crowd, recipients)


def back_after(report: Report, began: float, share: float) -> float:
    """Returns the seconds from a moment of the monotonic clock until this share of those lost was back; or infinity."""
    needed = math.ceil(report.lost * share)
    returns = sorted(report.returns)
    return returns[needed - 1] / 1e6 - began if 0 < needed <= len(returns) else math.inf
