"""Requests about one's own inbox and preferences that make no sense: refused with every violation, nothing stored."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from heliograph.type.v1.notification_pb2 import (
    CHANNEL_INBOX,
    CHANNEL_LIVE,
    CHANNEL_UNSPECIFIED,
    MARK_KIND_HIDDEN,
    MARK_KIND_READ,
    MARK_KIND_UNSPECIFIED,
    Mark,
)
from mesh.errors import Aborted, InvalidArgument
from tests.support.recipient_calls import calls_of, mark_of
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_EVERY_SHAPE, Site

UNKNOWN = "00000000-0000-4000-8000-000000000001"
Choice = prefs_pb2.CategoryPreference

# ---------------------------------------------------------------- pages


def _flip(token: str, place: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(token))
    raw[place] ^= 0xFF
    return base64.urlsafe_b64encode(raw).decode()


def _as_replay(token: str) -> str:
    raw = base64.urlsafe_b64decode(token)
    return base64.urlsafe_b64encode(raw[:1] + b"R" + raw[2:]).decode()


TAMPERED: Sequence[Callable[[str], str]] = (
    lambda token: "next",
    lambda token: "é",
    lambda token: token[:-4],
    lambda token: token + token,
    lambda token: _flip(token, 0),
    lambda token: _flip(token, 3),
    _as_replay,
    lambda token: "A" * 20_000,
)


@pytest.mark.parametrize("tamper", TAMPERED)
async def test_a_page_token_that_was_not_given_is_refused(site: Site, tamper: Callable[[str], str]) -> None:
    """Cut, doubled, changed, of another method, or no token at all."""
    alice = calls_of(site, "alice")
    first = await alice.list_inbox(inbox_pb2.ListInboxRequest(page_size=1))
    assert first.next_page_token
    request = inbox_pb2.ListInboxRequest(page_size=1, page_token=tamper(first.next_page_token))
    async with site.undisturbed():
        judge(await refusal_of(alice.list_inbox(request)), InvalidArgument, "FIELD_INVALID", "page_token")


async def test_a_page_token_of_another_inbox_shows_ones_own_only(site: Site) -> None:
    """A token is a place in a list, no right to one."""
    first = await calls_of(site, "alice").list_inbox(inbox_pb2.ListInboxRequest(page_size=1))
    async with site.undisturbed():
        stolen = await calls_of(site, "ivan").list_inbox(inbox_pb2.ListInboxRequest(page_token=first.next_page_token))
        assert list(stolen.items) == []


async def test_a_negative_page_is_refused_and_a_huge_one_cut(site: Site) -> None:
    """As the contract says of the field."""
    alice = calls_of(site, "alice")
    async with site.undisturbed():
        negative = alice.list_inbox(inbox_pb2.ListInboxRequest(page_size=-1))
        judge(await refusal_of(negative), InvalidArgument, "FIELD_INVALID", "page_size")
        huge = await alice.list_inbox(inbox_pb2.ListInboxRequest(page_size=2**31 - 1))
        assert len(huge.items) == len(site.gifts)


# ---------------------------------------------------------------- marks


class BadMarks(NamedTuple):
    """One way to mark wrongly, and the field that is named."""

    name: str
    marks: Callable[[Sequence[str]], list[Mark]]
    field: str


BAD_MARKS = (
    BadMarks("no marks", lambda ids: [], "marks"),
    BadMarks("501 marks", lambda ids: [mark_of("", MARK_KIND_HIDDEN, ids[0])] * 501, "marks"),
    BadMarks("5,001 refs", lambda ids: [mark_of("", MARK_KIND_HIDDEN, *([ids[0]] * 500))] * 11, "marks"),
    BadMarks("no refs", lambda ids: [mark_of("", MARK_KIND_HIDDEN)], "marks[0].refs"),
    BadMarks("501 refs", lambda ids: [mark_of("", MARK_KIND_HIDDEN, *([ids[0]] * 501))], "marks[0].refs"),
    BadMarks("no kind", lambda ids: [mark_of("", MARK_KIND_UNSPECIFIED, ids[0])], "marks[0].kind"),
    BadMarks(
        "a good one before a bad one",
        lambda ids: [mark_of("", MARK_KIND_HIDDEN, ids[0]), mark_of("", MARK_KIND_UNSPECIFIED, ids[1])],
        "marks[1].kind",
    ),
    BadMarks(
        "an id that is none",
        lambda ids: [mark_of("", MARK_KIND_HIDDEN, ids[0], "alice")],
        "marks[0].refs[1].notification_id",
    ),
    BadMarks(
        "an id in capitals",
        lambda ids: [mark_of("", MARK_KIND_HIDDEN, ids[0].upper())],
        "marks[0].refs[0].notification_id",
    ),
)


@pytest.mark.parametrize("bad", BAD_MARKS, ids=[bad.name.replace(" ", "-") for bad in BAD_MARKS])
async def test_bad_marks_are_refused_with_all_that_came_with_them(site: Site, bad: BadMarks) -> None:
    """A call is stored as a whole or not at all; alice's own rows stay as they are."""
    async with site.undisturbed():
        refused = calls_of(site, "alice").mark(bad.marks(site.gifts))
        judge(await refusal_of(refused), InvalidArgument, "FIELD_INVALID", bad.field)


async def test_a_negative_revision_is_refused(site: Site) -> None:
    """Revisions begin at 1, and 0 stands for any."""
    mark = mark_of("", MARK_KIND_READ, site.gifts[0])
    mark.refs[0].revision = -1
    async with site.undisturbed():
        refused = calls_of(site, "alice").mark([mark])
        judge(await refusal_of(refused), InvalidArgument, "FIELD_INVALID", "marks[0].refs[0].revision")


async def test_an_id_that_is_in_no_inbox_is_told_and_not_stored(site: Site) -> None:
    """That is no failure: it may have been trimmed."""
    async with site.undisturbed():
        answer = await calls_of(site, "alice").mark([mark_of("", MARK_KIND_HIDDEN, UNKNOWN)])
        assert [ref.notification_id for ref in answer.unknown_refs] == [UNKNOWN]


# ---------------------------------------------------------------- preferences


class BadChoice(NamedTuple):
    """One way to choose wrongly, and what is named."""

    name: str
    choices: Sequence[Choice]
    paths: Sequence[str]
    reason: str
    field: str


GENERAL = Choice(category="general", enabled=True)
BAD_CHOICES = (
    BadChoice("an unknown mask", [GENERAL], ["colour"], "MASK_INVALID", "update_mask"),
    BadChoice("a mask of an unknown category", [GENERAL], ["categories.gossip"], "MASK_INVALID", "update_mask"),
    BadChoice("a mask too deep", [GENERAL], ["categories.general.enabled"], "MASK_INVALID", "update_mask"),
    BadChoice("a good mask and a bad one", [GENERAL], ["categories.general", ""], "MASK_INVALID", "update_mask"),
    BadChoice("a mask of what is output only", [GENERAL], ["recipient_id"], "MASK_INVALID", "update_mask"),
    BadChoice(
        "an unknown category", [Choice(category="gossip")], [], "FIELD_INVALID", "preferences.categories[0].category"
    ),
    BadChoice("a category twice", [GENERAL, GENERAL], [], "FIELD_INVALID", "preferences.categories[1].category"),
    BadChoice(
        "no inbox",
        [Choice(category="general", enabled=True, disabled_channels=[CHANNEL_INBOX])],
        [],
        "FIELD_INVALID",
        "preferences.categories[0].disabled_channels",
    ),
    BadChoice(
        "a channel that is none",
        [Choice(category="general", enabled=True, disabled_channels=[CHANNEL_LIVE, CHANNEL_UNSPECIFIED])],
        [],
        "FIELD_INVALID",
        "preferences.categories[0].disabled_channels",
    ),
)


@pytest.mark.parametrize("bad", BAD_CHOICES, ids=[bad.name.replace(" ", "-") for bad in BAD_CHOICES])
async def test_a_bad_choice_is_refused_and_changes_nothing(site: Site, bad: BadChoice) -> None:
    """Preferences are changed as a whole or not at all."""
    alice = calls_of(site, "alice")
    before = await alice.get_preferences(prefs_pb2.GetPreferencesRequest())
    request = prefs_pb2.UpdatePreferencesRequest(
        preferences=prefs_pb2.Preferences(categories=bad.choices), update_mask=FieldMask(paths=bad.paths)
    )
    async with site.undisturbed():
        judge(await refusal_of(alice.update_preferences(request)), InvalidArgument, bad.reason, bad.field)
    assert await alice.get_preferences(prefs_pb2.GetPreferencesRequest()) == before


@IN_EVERY_SHAPE
async def test_a_choice_on_top_of_what_changed_meanwhile_is_refused(site: Site) -> None:
    """An etag that is not the stored one: somebody else was faster."""
    henry = calls_of(site, "henry")
    before = (await henry.get_preferences(prefs_pb2.GetPreferencesRequest())).preferences
    chosen = prefs_pb2.Preferences(categories=[Choice(category="billing", enabled=False)], etag=before.etag)
    async with site.undisturbed():
        await henry.update_preferences(prefs_pb2.UpdatePreferencesRequest(preferences=chosen))
        chosen.categories[0].enabled = True
        for etag in (before.etag, "99", "'; drop table preferences; --"):
            chosen.etag = etag
            late = henry.update_preferences(prefs_pb2.UpdatePreferencesRequest(preferences=chosen))
            judge(await refusal_of(late), Aborted, "ETAG_MISMATCH")
    after = (await henry.get_preferences(prefs_pb2.GetPreferencesRequest())).preferences
    assert [choice.enabled for choice in after.categories if choice.category == "billing"] == [False]
