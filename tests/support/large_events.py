"""Events that are as large as they may be, about: they fill the sockets of whoever does not read."""

from __future__ import annotations

from heliograph_client import Publisher, Receipt

# So many fill all that is between a node and a narrow client that does not read, the buffers of an edge and a sidecar
# included (700 KiB), and are fewer than the rows of a window.
FILLING = 90
# Characters of three bytes.
_LARGE = "☂" * 3_900


async def publish_large(publisher: Publisher, recipients: list[str], count: int) -> list[str]:
    """Publishes large events and returns their ids, oldest first."""
    prepared = [
        publisher.prepare(category="general", to=recipients, title=f"large {number}", body=_LARGE)
        for number in range(count)
    ]
    answers = await publisher.publish_batch(prepared)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    assert len(receipts) == count, answers
    return [receipt.event_id for receipt in receipts]
