"""A million deliveries while processes die again and again: none that was accepted is lost.

HELIOGRAPH_FAULTS_MINUTES says for how long, HELIOGRAPH_FAULTS_SEED chooses who dies when, and who lives through all of
it, so that what it holds in the end can be judged; the scoreboard names it.
"""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

from tests.faults.judging import judged
from tests.support.cluster import Cluster
from tests.support.shapes import PROCESSES

_MINUTES: Final = float(os.environ.get("HELIOGRAPH_FAULTS_MINUTES", "17"))
_SEED: Final = int(os.environ.get("HELIOGRAPH_FAULTS_SEED", "1"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.thorough,
    pytest.mark.timeout(_MINUTES * 120 + 300),
    pytest.mark.parametrize("cluster", [PROCESSES], indirect=True),
]

# A thousand deliveries a second, three and a half for each recipient: the window holds what comes while one is away.
_RECIPIENTS, _AUDIENCE, _RATE = 300, 100, 10.0
_VICTIMS: Final = (
    ("F-16", "ingest"),
    ("F-21", "fanout"),
    ("F-36", "prefs"),
    ("F-41", "presence"),
    ("F-63", "delivery"),
    ("F-61", "gateway-0"),
    ("F-43", "gateway-1"),
)


async def test_of_very_many_deliveries_none_is_lost(cluster: Cluster) -> None:
    """Who dies is drawn from the seed; each comes back before the next one goes, and one is spared."""
    choose = random.Random(_SEED)
    spared = _VICTIMS[_SEED % len(_VICTIMS)]
    mortals = [victim for victim in _VICTIMS if victim != spared]
    async with judged(
        cluster,
        f"many-{_SEED}-",
        recipients=_RECIPIENTS,
        rate=_RATE,
        audience=_AUDIENCE,
        connect=90.0,
        settle=120.0,
        seed=_SEED,
    ) as run:
        end = run.now() + _MINUTES * 60
        while run.now() < end:
            row, victim = choose.choice(mortals)
            await run.nemesis.kill(row, victim)
            await run.flows(choose.randint(20, 60))
        made = len(run.producer.accepted)
    assert made >= _MINUTES * 60 * _RATE / 2
