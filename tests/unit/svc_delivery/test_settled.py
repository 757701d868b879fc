"""What is remembered of settled deliveries, and for how long."""

from __future__ import annotations

from svc_delivery.settled import Delivery, Settled


def delivery(number: int) -> Delivery:
    """A delivery of its own."""
    return "acme/alice", number.to_bytes(16, "big")


def test_an_entry_lives_for_one_to_two_periods() -> None:
    """However the turns fall: at least `keep` seconds, and not for good."""
    settled = Settled(keep=15.0)
    settled.turn(15.0)
    settled.add(delivery(1))
    for now in (16.0, 29.9, 30.0, 44.9):
        settled.turn(now)
        assert delivery(1) in settled
    settled.turn(45.0)
    assert delivery(1) not in settled
    assert delivery(2) not in settled


def test_an_entry_just_before_a_turn_lives_for_a_whole_period() -> None:
    """Turning moves it to the older generation, no further."""
    settled = Settled(keep=15.0)
    settled.turn(15.0)
    settled.add(delivery(1))
    settled.turn(30.0)
    settled.add(delivery(2))
    settled.turn(44.9)
    assert delivery(1) in settled
    settled.turn(45.0)
    assert delivery(1) not in settled
    assert delivery(2) in settled


def test_the_same_entry_again_is_young_again() -> None:
    """What is settled a second time is remembered from then on."""
    settled = Settled(keep=10.0)
    settled.add(delivery(1))
    settled.turn(10.0)
    settled.add(delivery(1))
    settled.turn(20.0)
    assert delivery(1) in settled
    settled.turn(30.0)
    assert delivery(1) not in settled


def test_memory_is_bounded_without_a_turn() -> None:
    """With more entries than the limit the oldest generation goes, also when nobody lets time pass."""
    settled = Settled(keep=1_000.0, limit=100)
    for number in range(1_000):
        settled.add(delivery(number))
    kept = [number for number in range(1_000) if delivery(number) in settled]
    assert kept == list(range(800, 1_000))
