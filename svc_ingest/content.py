"""Rules about the texts of an event: what is wrong with one, or "" when nothing is. Pure.

Control characters (C0, DEL, C1) are refused, except newline and tab where there are several lines; line and paragraph
separators are refused where there is one. Other format characters stay: joiners belong to scripts and emoji, marks of
direction to right-to-left text. Must not change a text: what a person sees is what the producer sent.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from svc_ingest import limits

_LINE_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_TEXT_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPACE = re.compile(r"\s")
# The closing quote may be missing: each character is looked at once, whatever the text.
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
_JSON_OBJECT = msgspec.json.Decoder(dict[str, object])

_LINK_RULE = 'must be an absolute https or http URL without credentials, or a path that starts with one "/"'


def line_fault(text: str, most: int) -> str:
    """Judges one line of at most so many characters."""
    return _text_fault(text, most, _LINE_CONTROL)


def text_fault(text: str, most: int) -> str:
    """Judges a text of several lines and at most so many characters."""
    return _text_fault(text, most, _TEXT_CONTROL)


def link_fault(link: str) -> str:
    """Judges where a tap leads: an absolute web address, or a path inside the app; empty is fine."""
    if not link:
        return ""
    if len(link) > limits.LINK_CHARACTERS:
        return f"has {len(link)} characters; at most {limits.LINK_CHARACTERS} are allowed"
    # Browsers drop tabs and newlines and take a backslash for a slash: such a link leads elsewhere than it says.
    if "\\" in link or not link.isprintable() or _SPACE.search(link):
        return "has spaces, control characters or backslashes"
    if link[0] == "/":
        # Two slashes name another host.
        return _LINK_RULE if link.startswith("//") else ""
    try:
        parts = urlsplit(link)
        host = parts.netloc
        # Only an authority with a port or an IPv6 address needs a closer look.
        if ":" in host and (not parts.hostname or parts.port == 0):
            host = ""
    except ValueError:
        return _LINK_RULE
    return "" if parts.scheme in ("https", "http") and host and "@" not in host else _LINK_RULE


def data_fault(text: str) -> str:
    """Judges the data for the app: a JSON object, not too large and not too deep; empty is fine."""
    if not text:
        return ""
    data = text.encode()
    if len(data) > limits.DATA_BYTES:
        return f"has {len(data)} bytes; at most {limits.DATA_BYTES} are allowed"
    # Before it is parsed: parsers recurse.
    if _is_deep(text):
        return f"is nested deeper than {limits.DATA_LEVELS} levels"
    try:
        _JSON_OBJECT.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"is no JSON object: {error}"
    return ""


def _text_fault(text: str, most: int, refused: re.Pattern[str]) -> str:
    if len(text) > most:
        return f"has {len(text)} characters; at most {most} are allowed"
    # Far quicker than the search, and true of nearly every title.
    if text.isprintable() or refused.search(text) is None:
        return ""
    return "has control characters"


def _is_deep(text: str) -> bool:
    """Says whether a JSON text is nested too deep; for a text that is none, any answer will do."""
    if text.count("{") + text.count("[") <= limits.DATA_LEVELS:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            if depth > limits.DATA_LEVELS:
                return True
        elif match[2]:
            depth -= 1
    return False
