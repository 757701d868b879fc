"""Events that are as large as they may be, about: they fill the sockets of whoever does not read."""

from __future__ import annotations

from heliograph_client import Publisher, Receipt
from tests.support.device import Device

# So many fill all that is between a node and a narrow client that does not read, the buffers of an edge and a sidecar
# included (700 KiB), and are fewer than the rows of a window.
FILLING, _AT_ONCE = 90, 5
# Characters of three bytes.
_LARGE = "☂" * 3_900


async def _publish_large(publisher: Publisher, recipients: list[str], count: int) -> list[str]:
    """Publishes large events and returns their ids, oldest first."""
    prepared = [
        publisher.prepare(category="general", to=recipients, title=f"large {number}", body=_LARGE)
        for number in range(count)
    ]
    answers = await publisher.publish_batch(prepared)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    assert len(receipts) == count, answers
    return [receipt.event_id for receipt in receipts]


async def fill_sockets(publisher: Publisher, recipients: list[str], reader: Device) -> list[str]:
    """Publishes so much that whoever does not read has full sockets, and returns the ids, oldest first.

    Args:
        publisher: the producer's.
        recipients: of all of it.
        reader: a device of one of them, which reads: no more is published at once than it takes, so that it is never
            behind itself.
    """
    ids: list[str] = []
    while len(ids) < FILLING:
        ids += await _publish_large(publisher, recipients, _AT_ONCE)
        await reader.has(*ids)
    return ids
