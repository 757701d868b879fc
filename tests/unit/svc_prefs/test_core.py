"""The rules of wishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.errors import Aborted, Failure, InvalidArgument, PermissionDenied
from svc_prefs import core
from svc_prefs.ports import Changes, Stored
from tests.support.wishes import (
    INBOX,
    LIVE,
    NOW_US,
    REGISTRY,
    changed,
    choice,
    choices_of,
    decision,
    mute,
    resolve,
    shown,
    switched_on,
    update,
)


def test_one_who_never_chose_sees_the_defaults_of_every_category() -> None:
    """Defaults are shown in registry order, with the etag of nothing."""
    assert list(switched_on(None).items()) == [
        ("billing", True),
        ("newsletter", False),
        ("quiet", True),
        ("security", True),
        ("alarm", True),
    ]
    assert (shown(None).recipient_id, shown(None).etag, len(shown(None).mutes)) == ("alice", "0", 0)


def test_an_update_without_a_mask_sets_what_it_names() -> None:
    """Other choices stay."""
    first = changed(update(choice("billing", False)))
    second = changed(update(choice("newsletter")), first)
    assert switched_on(second) == {"billing": False, "newsletter": True, "quiet": True, "security": True, "alarm": True}
    assert (first.version, second.version) == (1, 2)


def test_a_masked_category_that_is_not_given_goes_back_to_its_default() -> None:
    """So an app can take a choice back."""
    first = changed(update(choice("billing", False), choice("newsletter")))
    second = changed(update(paths=("categories.billing",)), first)
    assert choices_of(second) == {"newsletter"}


@pytest.mark.parametrize("path", ["*", "categories"])
def test_the_whole_mask_replaces_all_choices(path: str) -> None:
    """What is not given is a default again."""
    first = changed(update(choice("billing", False)))
    second = changed(update(choice("newsletter"), paths=(path,)), first)
    assert choices_of(second) == {"newsletter"}


def test_a_mask_limits_an_update_to_what_it_names() -> None:
    """A given choice outside the mask is not written."""
    after = changed(update(choice("billing", False), choice("newsletter"), paths=("categories.newsletter",)))
    assert choices_of(after) == {"newsletter"}


@pytest.mark.parametrize("path", ["quiet_hours", "categories.unknown", "etag", "categories.", ""])
def test_an_unknown_path_is_refused(path: str) -> None:
    """Nothing is changed, the path is named."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(choice("billing"), paths=(path,)))
    assert caught.value.reason == "MASK_INVALID"
    assert repr(path) in caught.value.violations[0].description


def test_every_violation_of_an_update_is_named() -> None:
    """Unknown and repeated categories, the inbox switched off, unknown channels: all at once."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(choice("nope"), choice("billing", True, INBOX), choice("billing", True, 99)))  # type: ignore[arg-type]  # a channel of a later version
    fields = [violation.field for violation in caught.value.violations]
    assert fields == [
        "preferences.categories[0].category",
        "preferences.categories[1].disabled_channels",
        "preferences.categories[2].category",
        "preferences.categories[2].disabled_channels",
    ]


def test_an_etag_that_is_not_the_stored_one_is_refused() -> None:
    """An app that did not see the last change does not overwrite it."""
    stored = changed(update(choice("billing", False)))
    assert changed(update(choice("billing"), etag="1"), stored).version == 2
    with pytest.raises(Aborted) as caught:
        changed(update(choice("billing"), etag="0"), stored)
    assert caught.value.reason == "ETAG_MISMATCH"


def test_the_default_decision_names_nobody() -> None:
    """Recipients without a choice are in no group."""
    answer = resolve("billing", "alice", "bob")
    assert list(answer.default_resolution.channels) == [INBOX, LIVE]
    assert not answer.groups


def test_a_category_that_is_off_by_default_reaches_those_who_chose_it() -> None:
    """The default is a reason, the group has the channels."""
    alice = changed(update(choice("newsletter")))
    answer = resolve("newsletter", "alice", "bob", alice=alice)
    assert answer.default_resolution.suppress_reason == plan_pb2.SUPPRESS_REASON_OPTED_OUT
    assert [(list(group.recipient_ids), list(group.resolution.channels)) for group in answer.groups] == [
        (["alice"], [INBOX, LIVE])
    ]


def test_recipients_with_the_same_decision_share_a_group() -> None:
    """Opted out and inbox only are two groups; who chose the default is in none."""
    off = changed(update(choice("billing", False)))
    silent = changed(update(choice("billing", True, LIVE)))
    same = changed(update(choice("billing")))
    answer = resolve("billing", "a", "b", "c", "d", "e", a=off, b=silent, c=off, d=same)
    groups = {tuple(group.recipient_ids): group.resolution for group in answer.groups}
    assert set(groups) == {("a", "c"), ("b",)}
    assert groups["a", "c"].suppress_reason == plan_pb2.SUPPRESS_REASON_OPTED_OUT
    assert list(groups["b",].channels) == [INBOX]


def test_a_category_that_this_process_does_not_know_is_delivered() -> None:
    """Registries are rolled out one process at a time."""
    assert list(resolve("brand-new", "alice").default_resolution.channels) == [INBOX, LIVE]


@given(st.lists(st.tuples(st.sampled_from(["billing", "newsletter", "quiet"]), st.booleans(), st.booleans())))
def test_a_decision_follows_the_last_choice(choices: list[tuple[str, bool, bool]]) -> None:
    """After any series of updates each category is decided by its last choice, or by its default."""
    stored: Stored | None = None
    last: dict[str, tuple[bool, bool]] = {}
    for category, enabled, live in choices:
        stored = changed(update(choice(category, enabled, *(() if live else (LIVE,)))), stored)
        last[category] = (enabled, live)
    for category, rule in REGISTRY.items():
        enabled, live = last.get(category, (rule.enabled, True))
        expected = [INBOX, LIVE] if live and "live" in rule.channels else [INBOX]
        assert list(decision(category, stored).channels) == (expected if enabled else [])


# ---------------------------------------------------------------- mandatory categories


def test_a_mandatory_category_cannot_be_switched_off() -> None:
    """The refusal names the category, and nothing of the update is written."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(choice("billing", False), choice("security", False)))
    (violation,) = caught.value.violations
    assert (caught.value.reason, violation.field) == ("FIELD_INVALID", "preferences.categories[1].enabled")
    assert "'security' is mandatory" in violation.description


def test_channels_of_a_mandatory_category_can_be_switched_off_unless_they_are_fixed() -> None:
    """Beside the inbox the registry says which ones a recipient cannot refuse."""
    quiet = changed(update(choice("security", True, LIVE)))
    assert list(decision("security", quiet).channels) == [INBOX]
    with pytest.raises(InvalidArgument) as caught:
        changed(update(choice("alarm", True, LIVE)))
    assert [violation.field for violation in caught.value.violations] == ["preferences.categories[0].disabled_channels"]
    assert "'alarm' is mandatory on live" in caught.value.violations[0].description


def test_a_category_that_becomes_mandatory_reaches_those_who_had_switched_it_off() -> None:
    """Decision and what is shown follow the registry of today, and what is shown can be sent back."""
    off = changed(update(choice("billing", False, LIVE), muted=[mute("billing")]))
    today = {**REGISTRY, "billing": REGISTRY["alarm"]}
    item = pb.ResolveItem(category="billing", recipient_ids=["alice"])
    assert not core.resolve(today, item, {"alice": core.wishes_of(off)}, NOW_US).groups
    seen = core.show(today, "alice", off, NOW_US)
    assert seen.categories[0] == choice("billing")
    assert not seen.mutes
    request = pb.UpdatePreferencesRequest(preferences=seen)
    request.update_mask.paths.append("*")
    assert core.show(today, "alice", core.change(today, request, "acme", "alice", off, NOW_US), NOW_US).categories


def test_a_refusal_names_so_many_violations_and_repeats_no_long_text() -> None:
    """A refusal travels in trailers, which are small."""
    with pytest.raises(InvalidArgument) as caught:
        changed(update(*(choice("x" * 5_000) for _ in range(100))))
    assert len(caught.value.violations) == 20
    assert len(caught.value.message) < 4_000
    with pytest.raises(InvalidArgument) as caught:
        changed(update(paths=("y" * 5_000,)))
    assert len(caught.value.message) < 300


def test_a_decision_that_is_the_default_names_nobody_whatever_the_version() -> None:
    """Recipients with a choice that changes nothing cost an answer nothing."""
    stored = changed(update(choice("billing"), muted=[mute(topic_id="builds")]))
    assert not resolve("billing", "alice", alice=stored).groups


# ---------------------------------------------------------------- changes of wishes


def test_changes_are_answered_as_keys() -> None:
    """Tenant and recipient are one escaped text."""
    changes = Changes([("acme", "alice"), ("acme", "a/b")], 7, more=True)
    assert core.list_changes(changes) == pb.ListWishChangesResponse(
        recipient_keys=["acme/alice", "acme/a%2Fb"], change_number=7, more=True
    )


def test_a_page_of_changes_has_a_size() -> None:
    """None is the default, more is cut down, negative numbers are refused."""
    sizes = [core.change_page(pb.ListWishChangesRequest(page_size=size)) for size in (0, 1, 1_000, 5_000)]
    assert sizes == [1_000, 1, 1_000, 1_000]
    with pytest.raises(InvalidArgument) as caught:
        core.change_page(pb.ListWishChangesRequest(change_number=-1, page_size=-1))
    assert [violation.field for violation in caught.value.violations] == ["change_number", "page_size"]


# ---------------------------------------------------------------- batches and callers


@pytest.mark.parametrize(
    "request_",
    [
        pb.BatchResolveRequest(tenant_id="acme"),
        pb.BatchResolveRequest(items=[pb.ResolveItem(category="billing", recipient_ids=["a"])]),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="billing")]),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="b", recipient_ids=["a"])] * 51),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="b", recipient_ids=["a"] * 10_001)]),
        pb.BatchResolveRequest(
            tenant_id="acme", items=[pb.ResolveItem(category="b", recipient_ids=["a"], topic_id="two words")]
        ),
    ],
)
def test_a_batch_has_limits(request_: pb.BatchResolveRequest) -> None:
    """No tenant, no item, no recipient, too many of either, a malformed topic: refused."""
    with pytest.raises(InvalidArgument):
        core.check_batch(request_)


def test_a_recipient_acts_for_itself_only() -> None:
    """Its own id or none; another one, or another tenant, is refused."""
    caller = ("acme", "alice")
    for recipient_id in ("", "alice"):
        assert core.acting_for(role="recipient", caller=caller, recipient_id=recipient_id, tenant_id="") == caller
    for recipient_id, tenant_id in (("bob", ""), ("alice", "globex")):
        with pytest.raises(PermissionDenied):
            core.acting_for(role="recipient", caller=caller, recipient_id=recipient_id, tenant_id=tenant_id)


@pytest.mark.parametrize("role", ["operator", "gateway"])
def test_who_acts_for_others_says_for_whom(role: str) -> None:
    """Operators and gateways give tenant and recipient."""
    asked = core.acting_for(role=role, caller=("", "ada"), recipient_id="bob", tenant_id="acme")
    assert asked == ("acme", "bob")
    with pytest.raises(Failure, match="tenant_id"):
        core.acting_for(role=role, caller=("", "ada"), recipient_id="bob", tenant_id="")
    with pytest.raises(Failure, match="recipient_id"):
        core.acting_for(role=role, caller=("", "ada"), recipient_id="", tenant_id="acme")


def test_rows_that_nobody_asked_for_are_dropped() -> None:
    """A row of another recipient or tenant never decides."""
    rows = [Stored("acme", "alice", 1, b""), Stored("acme", "mallory", 1, b""), Stored("globex", "bob", 1, b"")]
    assert set(core.owned(rows, "acme", ["alice", "bob"])) == {"alice"}
