"""What a stranger may try, row by row, and the tests that try it; or why there is nothing to try yet.

Rows are those of the security part of the list of faults that this project is built against. Must not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SCENARIOS: Final = "tests/scenarios"
_EDGE: Final = f"{_SCENARIOS}/test_bad_input_edge.py"
_FRAMES: Final = f"{_SCENARIOS}/test_bad_input_frames.py"
_HANDSHAKE: Final = f"{_SCENARIOS}/test_bad_input_handshake.py"
_IDENTITY: Final = f"{_SCENARIOS}/test_bad_input_identity.py"
_INBOX: Final = f"{_SCENARIOS}/test_bad_input_inbox.py"
_INSIDE: Final = f"{_SCENARIOS}/test_bad_input_inside.py"
_PUBLISH: Final = f"{_SCENARIOS}/test_bad_input_publish.py"
_REPLIES: Final = f"{_SCENARIOS}/test_bad_input_replies.py"
_TOKENS: Final = f"{_SCENARIOS}/test_bad_input_tokens.py"
_MATRIX: Final = f"{_SCENARIOS}/test_mesh_matrix.py"
_MESH: Final = f"{_SCENARIOS}/test_mesh_edge.py"
_APPS: Final = f"{_SCENARIOS}/test_apps.py"
_HTTP2: Final = f"{_SCENARIOS}/test_hostile_http2.py"
_INPUT: Final = f"{_SCENARIOS}/test_hostile_input.py"
_CROWDS: Final = f"{_SCENARIOS}/test_hostile_crowds.py"
_ORDERS: Final = f"{_SCENARIOS}/test_hostile_operations.py"
_WISHES: Final = f"{_SCENARIOS}/test_wishes.py"
_LIMITS: Final = f"{_SCENARIOS}/test_reconnect_limits.py"
_FLOORS: Final = "tests/meta/test_hostile_rows.py"
_UNIT: Final = "tests/unit"
_TOPICS: Final = f"{_UNIT}/svc_prefs/store/test_sqlite.py"

# Row → the tests that try it, as file::function.
COVERED: Final[Mapping[str, tuple[str, ...]]] = {
    # Between services, and at the edge.
    "S-01": (
        f"{_MATRIX}::test_strangers_reach_no_method",
        f"{_EDGE}::test_a_certificate_that_is_not_a_producers_is_refused",
        f"{_UNIT}/mesh/test_identity.py::test_a_certificate_needs_exactly_one_uri_of_our_domain",
    ),
    "S-02": (
        f"{_MATRIX}::test_the_whole_matrix_of_methods_and_identities",
        f"{_INSIDE}::test_a_service_opens_no_method_that_is_not_its_own",
        "tests/meta/test_contract.py::test_every_method_says_who_may_call_it",
    ),
    "S-03": (
        f"{_EDGE}::test_a_certificate_of_another_tenant_publishes_there",
        f"{_PUBLISH}::test_what_a_producer_has_no_grant_for_is_refused",
        f"{_IDENTITY}::test_a_producer_of_another_tenant_reaches_its_own_recipients_only",
    ),
    "S-04": (
        f"{_EDGE}::test_forged_identity_headers_change_nobody",
        f"{_APPS}::test_forged_headers_change_nothing_at_the_edge",
        f"{_UNIT}/mesh/test_identity.py::test_a_header_that_comes_twice_names_nobody",
    ),
    "S-05": (
        f"{_EDGE}::test_control_headers_from_outside_change_no_call",
        f"{_MESH}::test_no_header_from_outside_makes_the_edge_try_again",
        f"{_MESH}::test_a_short_deadline_of_the_callers_own_is_kept",
        f"{_UNIT}/mesh/envoy/test_edge.py::test_headers_of_the_mesh_are_taken_off_before_anything_else",
    ),
    "S-06": (f"{_EDGE}::test_an_odd_request_gets_a_status_in_json", f"{_HANDSHAKE}::test_an_odd_request_opens_nothing"),
    "S-07": (f"{_HANDSHAKE}::test_an_odd_request_opens_nothing", f"{_MESH}::test_a_websocket_needs_its_path"),
    "S-08": (
        f"{_MESH}::test_internal_methods_do_not_exist_at_the_edge",
        f"{_MESH}::test_metrics_are_served_on_loopback_and_nothing_else",
        f"{_INSIDE}::test_everything_listens_on_loopback_only",
        f"{_INSIDE}::test_no_port_shows_or_stops_anything",
        f"{_UNIT}/mesh/test_access.py::test_inspection_is_the_operators",
    ),
    "S-09": (
        f"{_MESH}::test_exactly_the_named_gateway_node_is_reached",
        f"{_INSIDE}::test_a_link_that_means_another_node_is_not_served",
        f"{_INSIDE}::test_a_stale_node_takes_nobodys_sessions",
        f"{_UNIT}/svc_gateway/test_main.py::test_a_link_for_another_node_or_epoch_is_refused",
        f"{_UNIT}/svc_gateway/test_link.py::test_a_newer_link_of_a_process_takes_the_place_of_the_older_one",
    ),
    "S-10": (
        f"{_UNIT}/mesh/test_server.py::test_an_unknown_exceptions_text_never_leaves",
        f"{_REPLIES}::test_no_method_shows_what_is_inside",
        f"{_REPLIES}::test_no_route_shows_what_is_inside",
        f"{_REPLIES}::test_no_session_shows_what_is_inside",
        f"{_MESH}::test_a_service_that_is_away_is_not_described",
    ),
    # Tokens.
    "S-11": (
        f"{_UNIT}/mesh/test_tokens.py::test_only_eddsa_is_accepted",
        f"{_TOKENS}::test_a_token_without_a_true_signature_opens_nothing",
        f"{_FLOORS}::test_libraries_are_as_new_as_their_last_hole_demands",
    ),
    "S-12": (f"{_TOKENS}::test_a_bad_token_opens_nothing",),
    "S-13": (
        f"{_TOKENS}::test_a_bad_token_opens_nothing",
        f"{_TOKENS}::test_no_token_makes_a_service_look_for_its_key",
        f"{_UNIT}/mesh/test_tokens.py::test_the_key_must_be_named",
    ),
    "S-14": (
        f"{_TOKENS}::test_a_bad_token_opens_nothing",
        f"{_TOKENS}::test_credentials_of_another_kind_open_nothing",
        f"{_UNIT}/mesh/test_tokens.py::test_wrong_claims_are_refused",
    ),
    "S-15": (
        f"{_LIMITS}::test_a_token_ends_its_session_unless_a_fresh_one_comes",
        f"{_FRAMES}::test_a_fresh_token_of_another_is_refused",
        f"{_UNIT}/svc_gateway/test_session.py::test_an_expired_token_ends_the_session",
    ),
    # Sessions.
    "S-21": (
        f"{_HANDSHAKE}::test_a_page_of_another_origin_gets_no_socket",
        f"{_UNIT}/svc_gateway/test_handshake.py::test_a_second_origin_does_not_hide_behind_a_listed_one",
    ),
    "S-22": (
        f"{_CROWDS}::test_a_crowd_that_says_nothing_is_let_go",
        f"{_HANDSHAKE}::test_who_says_nothing_is_let_go",
        f"{_MESH}::test_a_connection_that_carries_nothing_ends_and_a_quiet_session_stays",
        f"{_UNIT}/svc_gateway/test_connect.py::test_a_stream_that_never_says_hello_is_ended",
    ),
    "S-23": (
        f"{_FRAMES}::test_a_broken_frame_ends_the_connection",
        f"{_UNIT}/svc_gateway/test_connection.py::test_noise_ends_a_connection_and_nothing_else",
    ),
    "S-24": (
        f"{_CROWDS}::test_compression_is_not_agreed_to",
        f"{_INPUT}::test_a_compressed_message_is_measured_when_it_is_large_again",
    ),
    "S-25": (
        f"{_CROWDS}::test_readers_that_do_not_read_hold_up_nobody",
        f"{_LIMITS}::test_a_reader_that_stays_behind_is_closed_and_loses_nothing",
        f"{_UNIT}/svc_gateway/test_connect.py::test_a_device_that_does_not_read_is_refused_and_caught_up",
    ),
    "S-26": (
        f"{_SCENARIOS}/test_hostile_flood.py::test_a_session_too_many_is_told_when_to_come_back",
        f"{_UNIT}/svc_gateway/test_main.py::test_a_full_node_says_when_to_come_back",
        f"{_UNIT}/svc_gateway/test_connect.py::test_a_full_node_says_when_to_come_back",
        f"{_UNIT}/svc_gateway/test_websocket.py::test_a_listener_that_admits_nobody_says_when_to_come_back",
        f"{_MESH}::test_one_address_cannot_exceed_its_rate_and_harms_no_other",
    ),
    "S-27": (
        f"{_FRAMES}::test_an_id_that_was_not_given_to_the_session_cannot_be_marked",
        f"{_APPS}::test_ids_of_others_are_refused_in_every_frame",
        f"{_WISHES}::test_nobody_changes_the_wishes_of_another_recipient",
        f"{_IDENTITY}::test_a_recipient_changes_nobody_elses",
    ),
    "S-30": (
        f"{_FRAMES}::test_a_malformed_cursor_brings_the_whole_window",
        f"{_FRAMES}::test_a_cursor_that_cannot_be_used_brings_the_whole_window_and_is_counted",
        f"{_FRAMES}::test_a_cursor_of_another_recipient_shows_ones_own_only",
        f"{_APPS}::test_a_tampered_cursor_brings_the_own_window_and_nothing_else",
    ),
    "S-31": (f"{_CROWDS}::test_no_answer_reaches_another_caller_when_calls_are_given_up",),
    "S-32": (
        f"{_CROWDS}::test_a_device_id_of_two_recipients_is_two_devices",
        f"{_IDENTITY}::test_a_session_of_another_tenant_hears_nothing_and_ends_nobodys",
    ),
    # HTTP/2 and messages.
    "S-33": (f"{_HTTP2}::test_streams_that_are_reset_at_once_end_the_connection",),
    "S-34": (
        f"{_HTTP2}::test_headers_without_an_end_are_cut_off",
        f"{_EDGE}::test_too_many_headers_are_refused",
    ),
    "S-35": (
        f"{_FLOORS}::test_libraries_are_as_new_as_their_last_hole_demands",
        f"{_HTTP2}::test_headers_without_an_end_are_cut_off",
    ),
    "S-36": (
        f"{_PUBLISH}::test_a_message_beyond_the_limit_is_refused_unread",
        f"{_INPUT}::test_giant_metadata_is_refused",
        f"{_UNIT}/mesh/test_server.py::test_oversized_requests_and_headers_harm_nobody",
        f"{_APPS}::test_a_frame_that_is_too_large_ends_its_own_session_only",
    ),
    "S-37": (
        f"{_HTTP2}::test_streams_that_never_go_on_are_few_and_end",
        f"{_HTTP2}::test_a_stream_too_many_is_refused",
        f"{_UNIT}/svc_gateway/test_connect.py::test_streams_without_a_session_are_bounded",
        f"{_UNIT}/mesh/test_server.py::test_a_unary_call_without_deadline_gets_the_default",
    ),
    "S-38": (f"{_FLOORS}::test_libraries_are_as_new_as_their_last_hole_demands",),
    "S-39": (
        f"{_INPUT}::test_data_of_ten_thousand_levels_is_refused",
        f"{_INPUT}::test_a_body_of_ten_thousand_levels_is_refused",
        f"{_FRAMES}::test_what_is_no_frame_is_refused_and_the_session_goes_on",
        f"{_PUBLISH}::test_bytes_that_are_no_message_are_refused",
        f"{_FLOORS}::test_messages_are_read_by_the_fast_parser_and_hold_no_any",
    ),
    "S-40": (
        f"{_INPUT}::test_what_is_not_known_is_not_kept",
        f"{_UNIT}/svc_ingest/test_record.py::test_unknown_fields_do_not_travel_on",
    ),
    "S-41": (
        f"{_INPUT}::test_a_million_items_in_two_mebibytes_are_counted_before_they_are_looked_at",
        f"{_PUBLISH}::test_a_bad_event_is_refused",
    ),
    "S-42": (
        f"{_INPUT}::test_times_at_the_edge_of_numbers_are_refused",
        f"{_INPUT}::test_a_priority_that_is_no_number_of_the_contract_is_refused_over_rest",
        f"{_PUBLISH}::test_a_bad_event_is_refused",
    ),
    "S-43": (
        f"{_INPUT}::test_an_id_that_looks_like_another_is_refused",
        f"{_INPUT}::test_half_a_character_is_no_title",
        f"{_FRAMES}::test_a_broken_frame_ends_the_connection",
        f"{_UNIT}/svc_ingest/test_content.py::test_a_line_has_no_control_characters",
    ),
    # Orders that make no sense.
    "mask with an unknown path": (f"{_WISHES}::test_a_mask_with_an_unknown_path_changes_nothing",),
    "preferences of another": (f"{_IDENTITY}::test_a_recipient_changes_nobody_elses",),
    "unsubscribing what is not subscribed": (f"{_WISHES}::test_a_recipient_subscribes_and_unsubscribes",),
    "topic of very many": (
        f"{_SCENARIOS}/test_wishes_in_fanout.py::test_a_large_topic_is_read_page_by_page",
        f"{_TOPICS}::test_a_page_costs_the_same_wherever_it_lies_and_however_large_the_topic_is",
    ),
    "redrive of what is gone": (f"{_ORDERS}::test_redriving_what_is_gone_redrives_nothing",),
    "filter that matches nothing": (f"{_ORDERS}::test_a_filter_that_matches_nothing_shows_an_empty_page",),
    "quota of zero": (f"{_ORDERS}::test_a_quota_of_zero_lets_nothing_through",),
}

# Row → why it cannot be tried yet.
ABSENT: Final[Mapping[str, str]] = {
    "S-16": "a token is withdrawn by its end or with its key only; there is no log-out that could be revoked",
    "S-28": "server-sent events are not offered",
    "S-29": "long polls are not offered",
}
