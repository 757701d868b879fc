"""Ids carry time, sort alike as text and bytes, derive deterministically; joined keys are injective."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import ids

_TIMES = st.integers(min_value=0, max_value=2**48 - 1)
_ENTROPY = st.binary(min_size=10, max_size=10)
_PARTS = st.lists(st.binary(max_size=20), max_size=5)
_STRINGS = st.text(alphabet=st.sampled_from("ab/%25F2f~ä"), max_size=8)
_TUPLES = st.lists(_STRINGS, min_size=1, max_size=4).map(tuple)


@given(_TIMES, _ENTROPY)
def test_uuid7_is_what_the_standard_library_reads(time_ms: int, entropy: bytes) -> None:
    """Version, variant and time are where RFC 9562 puts them, and the rest is the given entropy."""
    id_ = ids.uuid7(time_ms, entropy)
    read = uuid.UUID(bytes=id_)
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert ids.id_time_ms(id_) == time_ms
    assert id_[9:] == entropy[3:]
    assert id_[7] == entropy[1]


@given(_TIMES, _PARTS, st.booleans())
def test_derived_ids_are_uuid8_with_time_and_last_bit(time_ms: int, parts: list[bytes], low_bit: bool) -> None:
    """A derived id is a UUIDv8, carries its time, ends in the given bit, and is always the same."""
    id_ = ids.derive_id(time_ms, parts, low_bit)
    read = uuid.UUID(bytes=id_)
    assert (read.version, read.variant) == (8, uuid.RFC_4122)
    assert ids.id_time_ms(id_) == time_ms
    assert bool(id_[-1] & 1) is low_bit
    assert ids.derive_id(time_ms, tuple(parts), low_bit) == id_
    other = ids.derive_id(time_ms, parts, not low_bit)
    assert id_[:-1] == other[:-1]
    assert id_[-1] ^ other[-1] == 1


@given(_TIMES, _PARTS, _PARTS)
def test_different_parts_give_different_ids(time_ms: int, one: list[bytes], two: list[bytes]) -> None:
    """Lengths are hashed too, so shifting bytes between parts changes the id."""
    same = ids.derive_id(time_ms, one, True) == ids.derive_id(time_ms, two, True)
    assert same == (one == two)


def test_derived_ids_keep_their_value_for_ever() -> None:
    """Stored ids must be found again by later versions, so the value itself is fixed here."""
    id_ = ids.derive_id(1_700_000_000_000, [b"tenant", b"producer", b"request"], True)
    assert ids.to_text(id_) == "018bcfe5-6800-8414-92e6-60138353de5b"


def test_moving_a_byte_between_parts_changes_the_id() -> None:
    """(ab, c) and (a, bc) are different parts."""
    assert ids.derive_id(1, [b"ab", b"c"], False) != ids.derive_id(1, [b"a", b"bc"], False)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_text_sorts_like_bytes_and_comes_back(one: bytes, two: bytes) -> None:
    """Sorting ids as text gives the order of their bytes, and text is the canonical UUID spelling."""
    assert (ids.to_text(one) < ids.to_text(two)) == (one < two)
    assert ids.from_text(ids.to_text(one)) == one
    assert ids.to_text(one) == str(uuid.UUID(bytes=one))


@given(_TIMES, _TIMES, _ENTROPY, _ENTROPY)
def test_ids_sort_by_time_first(time_one: int, time_two: int, one: bytes, two: bytes) -> None:
    """An id of an earlier millisecond sorts before every id of a later one."""
    if time_one != time_two:
        assert (ids.uuid7(time_one, one) < ids.uuid7(time_two, two)) == (time_one < time_two)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "018bcfe5-6800-81cc-903f",
        "018BCFE5-6800-81CC-903F-06160BAC44F9",
        "018bcfe5680081cc903f06160bac44f9",
        "{018bcfe5-6800-81cc-903f-06160bac44f9}",
        "018bcfe5-6800-81cc-903f-06160bac44f9\n",
        "018bcfe5-6800-81cc-903f-06160bac44fg",
        "٠18bcfe5-6800-81cc-903f-06160bac44f9",
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    """One id has one text; anything else would be a second key for the same thing."""
    with pytest.raises(ValueError, match="not an id"):
        ids.from_text(text)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_text_of_other_sizes_is_refused(size: int) -> None:
    """Only sixteen bytes are an id."""
    with pytest.raises(ValueError, match="16 bytes"):
        ids.to_text(bytes(size))


@pytest.mark.parametrize("time_ms", [-1, 2**48])
def test_times_that_do_not_fit_are_refused(time_ms: int) -> None:
    """A time outside 48 bits would silently wrap."""
    with pytest.raises(ValueError, match="48 bits"):
        ids.uuid7(time_ms, bytes(10))
    with pytest.raises(ValueError, match="48 bits"):
        ids.derive_id(time_ms, [], False)


def test_entropy_of_another_size_is_refused() -> None:
    """Too little entropy must not be padded in silence."""
    with pytest.raises(ValueError, match="10 bytes"):
        ids.uuid7(0, bytes(9))


@given(_TUPLES, _TUPLES)
def test_joined_keys_are_injective(one: tuple[str, ...], two: tuple[str, ...]) -> None:
    """Different parts never share a key, whatever separators and escapes they contain."""
    assert (ids.join_key(*one) == ids.join_key(*two)) == (one == two)
    assert ids.split_key(ids.join_key(*one)) == one


@given(_STRINGS)
def test_splitting_refuses_what_joining_cannot_give(key: str) -> None:
    """A key that splits is exactly the key its parts join to; all others are refused."""
    try:
        parts = ids.split_key(key)
    except ValueError:
        return
    assert ids.join_key(*parts) == key


@pytest.mark.parametrize("key", ["a%", "%2", "%2f", "a/%41", "%%25"])
def test_broken_escapes_are_refused(key: str) -> None:
    """A percent sign is always the start of one of the two escapes."""
    with pytest.raises(ValueError, match="not a joined key"):
        ids.split_key(key)


def test_a_key_of_no_parts_is_refused() -> None:
    """No parts and one empty part would have the same key."""
    with pytest.raises(ValueError, match="at least one part"):
        ids.join_key()
