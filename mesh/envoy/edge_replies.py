"""What the edge answers by itself, in the shape that the services' own failures have: a google.rpc.Status in JSON.

gRPC callers get a gRPC status from Envoy already. Must not speak for a service.
"""

from __future__ import annotations

from collections.abc import Sequence

from mesh.envoy.pieces import Piece, any_of

# HTTP status to google.rpc code.
_CODES = {
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    405: 12,
    408: 4,
    413: 3,
    415: 3,
    426: 9,
    429: 8,
    431: 3,
    500: 13,
    501: 12,
    502: 14,
    503: 14,
    504: 4,
}


def local_replies() -> Piece:
    """Returns the mapping of Envoy's own answers; of two that fit, the first counts."""
    silent = [
        # What Envoy refuses without a word, by its own name for it.
        _silent("path_normalization_failed", 400, 400, "the path has an escaped slash or a zero byte, or steps out"),
        _silent("upgrade_failed", 403, 404, "no WebSocket is served at this path"),
    ]
    return {"mappers": [*silent, *(_mapper(status, code, "%LOCAL_REPLY_BODY%", []) for status, code in _CODES.items())]}


def _silent(why: str, status: int, shown: int, message: str) -> Piece:
    by_name = _expression(f"response.code_details == '{why}'")
    return {**_mapper(status, _CODES[shown], message, [by_name]), "status_code": shown}


def _mapper(status: int, code: int, message: str, more: Sequence[Piece]) -> Piece:
    matches = {"op": "EQ", "value": {"default_value": status, "runtime_key": "none"}}
    filters = [{"status_code_filter": {"comparison": matches}}, *more, {"or_filter": _is_rest()}]
    return {
        "filter": {"and_filter": {"filters": filters}},
        "body_format_override": {"json_format": {"code": code, "message": message, "details": []}},
    }


def _is_rest() -> Piece:
    """Returns what tells REST from gRPC; after the transcoder only the path that it remembers does."""
    plain = {
        "header_filter": {
            "header": {
                "name": "content-type",
                "string_match": {"prefix": "application/grpc"},
                "invert_match": True,
                "treat_missing_header_as_empty": True,
            }
        }
    }
    return {"filters": [plain, _expression("'x-envoy-original-path' in request.headers")]}


def _expression(expression: str) -> Piece:
    cel = any_of("extensions.access_loggers.filters.cel.v3.ExpressionFilter", expression=expression)
    return {"extension_filter": {"name": "cel", "typed_config": cel}}
