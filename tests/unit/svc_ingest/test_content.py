"""Texts, links and data, one by one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_ingest import limits
from svc_ingest.content import data_fault, line_fault, link_fault, text_fault


@pytest.mark.parametrize("control", ["\0", "\x1b", "\t", "\n", "\r", "\x7f", "\x85", "\u2028", "\u2029"])
def test_a_line_has_no_control_characters(control: str) -> None:
    """C0, DEL, C1 and separators of lines."""
    assert line_fault(f"a{control}b", 10) == "has control characters"


@pytest.mark.parametrize("control", ["\0", "\x1b", "\r", "\x0b", "\x7f", "\x85"])
def test_a_text_has_newlines_and_tabs_only(control: str) -> None:
    """Everything else that controls a terminal is refused."""
    assert text_fault(f"a{control}b", 10) == "has control characters"
    assert text_fault("a\n\tb\u2028c", 10) == ""


@pytest.mark.parametrize("text", ["👩‍👩‍👧", "می‌خواهم", "\u202babc\u202c", "e\u0301", "a\u00a0b", "\ue000", "\u00ad"])
def test_writing_is_left_alone(text: str) -> None:
    """Joiners, direction marks and combining characters belong to what people write."""
    assert line_fault(text, 10) == ""


def test_characters_are_counted_not_bytes() -> None:
    """Two hundred emoji are two hundred characters."""
    assert line_fault("🚀" * 200, 200) == ""
    assert line_fault("🚀" * 201, 200) == "has 201 characters; at most 200 are allowed"


@pytest.mark.parametrize(
    "link",
    [
        "",
        "https://example.org",
        "http://localhost:8080/a?b=c#d",
        "HTTPS://EXAMPLE.ORG/",
        "https://[2001:db8::1]:443/x",
        "https://bücher.example/ä",
        "https://example.org/@alice?to=a@b.c",
        "/",
        "/orders/17?tab=items",
        "/a//b",
    ],
)
def test_right_links(link: str) -> None:
    """Absolute web addresses and paths inside the app."""
    assert link_fault(link) == ""


@pytest.mark.parametrize(
    "link",
    [
        "example.org",
        "orders/17",
        "//evil.example/x",
        "/\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "JavaScript://example.org/%0aalert(1)",
        "data:text/html,x",
        "ftp://example.org",
        "https:example.org",
        "https://",
        "https:///path",
        "https://bank.example@evil.example/",
        "https://user:secret@example.org/",
        "https://example.org:99999/",
        "https://example.org:x/",
        "https://example.org:0/",
        "https://:443/",
        "https://[::1",
        "https://exa mple.org",
        "https://example.org/\u200b",
        " https://example.org",
        "https://example.org/\n",
        "/" + "l" * 2_000,
    ],
)
def test_wrong_links(link: str) -> None:
    """Other schemes, other hosts in disguise, credentials, and what is no address."""
    assert link_fault(link)


def nested(levels: int, inside: str = "1") -> str:
    """JSON so many levels deep."""
    return '{"a":' * (levels - 1) + f'{{"a":{inside}}}' + "}" * (levels - 1)


@pytest.mark.parametrize(
    "data",
    ["", "{}", ' {"a": [1, 2.5e3, "\\u0000", null, true]} ', nested(16), '{"a":"' + "[" * 100 + '"}', '{"a":"\\"[[["}'],
)
def test_right_data(data: str) -> None:
    """A JSON object; brackets inside strings are no levels."""
    assert data_fault(data) == ""


@pytest.mark.parametrize(
    "data",
    [
        "[]",
        '"text"',
        "null",
        "{",
        '{"a":1,}',
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":1e999}',
        '{"a":"\\ud800"}',
        "{'a':1}",
        '{"a":1}{"b":2}',
        "\ufeff{}",
        '{"a":"\n"}',
    ],
)
def test_wrong_data(data: str) -> None:
    """Whatever some parser of some client would choke on."""
    assert data_fault(data).startswith("is no JSON object")


@pytest.mark.parametrize("deep", [nested(17), nested(1_000), '{"a":' + "[" * 8_000, "[" * 8_192, '{"a":' + "[" * 17])
def test_deep_data_is_refused_before_it_is_parsed(deep: str) -> None:
    """Nesting is counted without recursion, also in what is no JSON."""
    assert data_fault(deep) == "is nested deeper than 16 levels"


def test_data_is_limited_in_bytes() -> None:
    """The limit counts bytes, not characters."""
    fill = limits.DATA_BYTES - len('{"a":""}')
    assert data_fault('{"a":"' + "x" * fill + '"}') == ""
    assert data_fault('{"a":"' + "x" * (fill - 1) + 'ä"}').startswith("has 8193 bytes")


def test_strings_that_never_end_cost_no_more_than_their_length() -> None:
    """Eight kilobytes of quotes and brackets are looked at once each: a quadratic search would not end in time."""
    for text in ('{"a":' + "[" * 17 + '"' + '\\"' * 4_000, "[]" * 20 + '"' * 8_000, "[" + '"\\' * 4_000 + "[" * 17):
        for _ in range(200):
            assert data_fault(text)


@given(
    st.recursive(st.none() | st.text(), lambda inner: st.lists(inner, min_size=1) | st.dictionaries(st.text(), inner))
)
def test_depth_is_that_of_the_parsed_value(value: object) -> None:
    """What is refused for its depth is exactly what is deeper than the limit."""

    def depth(item: object) -> int:
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    wrapped: object = value
    for _ in range(limits.DATA_LEVELS - 2):
        wrapped = [wrapped]
    text = json.dumps({"a": wrapped}, ensure_ascii=False)
    if len(text.encode(errors="replace")) <= limits.DATA_BYTES:
        assert ("deeper" in data_fault(text)) == (depth({"a": wrapped}) > limits.DATA_LEVELS)
