"""The rules of wishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.errors import Aborted, Failure, InvalidArgument, PermissionDenied, StartError
from svc_prefs import core
from svc_prefs.ports import Stored

REGISTRY = core.parse_registry(
    """
    [categories.billing]
    [categories.newsletter]
    enabled = false
    [categories.quiet]
    channels = ["inbox"]
    """,
    "test",
)
INBOX, LIVE = notification_pb2.CHANNEL_INBOX, notification_pb2.CHANNEL_LIVE


def update(*choices: pb.CategoryPreference, paths: tuple[str, ...] = (), etag: str = "") -> pb.UpdatePreferencesRequest:
    """An update of some choices."""
    request = pb.UpdatePreferencesRequest(preferences=pb.Preferences(categories=choices, etag=etag))
    request.update_mask.paths.extend(paths)
    return request


def choice(category: str, enabled: bool = True, *disabled: notification_pb2.Channel.ValueType) -> pb.CategoryPreference:
    """One choice."""
    return pb.CategoryPreference(category=category, enabled=enabled, disabled_channels=disabled)


def changed(request: pb.UpdatePreferencesRequest, stored: Stored | None = None) -> Stored:
    """Alice's preferences after an update."""
    return core.change(REGISTRY, request, "acme", "alice", stored)


def resolve(category: str, *recipient_ids: str, **stored: Stored) -> pb.ItemResolution:
    """The decision for some recipients."""
    return core.resolve(REGISTRY, pb.ResolveItem(category=category, recipient_ids=recipient_ids), stored)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[categories", "test: "),
        ("[categories]", "has no category"),
        ("[categories.a]\nchannels = ['live']", "categories.a.channels must start with inbox"),
        ("[categories.a]\nchannels = ['inbox', 'inbox']", "categories.a.channels"),
        ("[categories.a]\nchannels = ['pigeon']", "pigeon"),
        ("[categories.a]\nenabled = 'yes'", "enabled"),
        ("", "categories"),
    ],
)
def test_a_broken_registry_stops_the_start_with_one_line(text: str, part: str) -> None:
    """The line names the file, and the key or what is wrong."""
    with pytest.raises(StartError, match="categories file test") as caught:
        core.parse_registry(text, "test")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_who_never_chose_sees_the_defaults_of_every_category() -> None:
    """Defaults are shown in registry order, with the etag of nothing."""
    shown = core.show(REGISTRY, "alice", None)
    assert [(one.category, one.enabled) for one in shown.categories] == [
        ("billing", True),
        ("newsletter", False),
        ("quiet", True),
    ]
    assert (shown.recipient_id, shown.etag) == ("alice", "0")


def test_an_update_without_a_mask_sets_what_it_names() -> None:
    """Other choices stay."""
    first = changed(update(choice("billing", False)))
    second = changed(update(choice("newsletter")), first)
    shown = core.show(REGISTRY, "alice", second)
    assert [(one.category, one.enabled) for one in shown.categories] == [
        ("billing", False),
        ("newsletter", True),
        ("quiet", True),
    ]
    assert (first.version, second.version) == (1, 2)


def test_a_masked_category_that_is_not_given_goes_back_to_its_default() -> None:
    """So an app can take a choice back."""
    first = changed(update(choice("billing", False), choice("newsletter")))
    second = changed(update(paths=("categories.billing",)), first)
    assert set(core.chosen(second)) == {"newsletter"}


@pytest.mark.parametrize("path", ["*", "categories"])
def test_the_whole_mask_replaces_all_choices(path: str) -> None:
    """What is not given is a default again."""
    first = changed(update(choice("billing", False)))
    second = changed(update(choice("newsletter"), paths=(path,)), first)
    assert set(core.chosen(second)) == {"newsletter"}


def test_a_mask_limits_an_update_to_what_it_names() -> None:
    """A given choice outside the mask is not written."""
    after = changed(update(choice("billing", False), choice("newsletter"), paths=("categories.newsletter",)))
    assert set(core.chosen(after)) == {"newsletter"}


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
        answer = resolve(category, "alice", **({"alice": stored} if stored else {}))
        decision = answer.groups[0].resolution if answer.groups else answer.default_resolution
        expected = [INBOX, LIVE] if live and "live" in rule.channels else [INBOX]
        assert list(decision.channels) == (expected if enabled else [])


@pytest.mark.parametrize(
    "request_",
    [
        pb.BatchResolveRequest(tenant_id="acme"),
        pb.BatchResolveRequest(items=[pb.ResolveItem(category="billing", recipient_ids=["a"])]),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="billing")]),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="b", recipient_ids=["a"])] * 51),
        pb.BatchResolveRequest(tenant_id="acme", items=[pb.ResolveItem(category="b", recipient_ids=["a"] * 10_001)]),
    ],
)
def test_a_batch_has_limits(request_: pb.BatchResolveRequest) -> None:
    """No tenant, no item, no recipient, too many of either: refused."""
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


def test_an_operator_says_whom_it_means() -> None:
    """Tenant and recipient are both needed."""
    asked = core.acting_for(role="operator", caller=("", "ada"), recipient_id="bob", tenant_id="acme")
    assert asked == ("acme", "bob")
    with pytest.raises(Failure, match="tenant_id"):
        core.acting_for(role="operator", caller=("", "ada"), recipient_id="bob", tenant_id="")


def test_rows_that_nobody_asked_for_are_dropped() -> None:
    """A row of another recipient or tenant never decides."""
    rows = [Stored("acme", "alice", 1, b""), Stored("acme", "mallory", 1, b""), Stored("globex", "bob", 1, b"")]
    assert set(core.owned(rows, "acme", ["alice", "bob"])) == {"alice"}
