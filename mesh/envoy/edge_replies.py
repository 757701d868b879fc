"""What the edge answers by itself, in the shape that the services' own failures have: a google.rpc.Status in JSON.

gRPC callers get a gRPC status from Envoy already. Must not speak for a service.
"""

from __future__ import annotations

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
    """Returns the mapping of Envoy's own answers."""
    return {"mappers": [_mapper(status, code) for status, code in _CODES.items()]}


def _mapper(status: int, code: int) -> Piece:
    matches = {"op": "EQ", "value": {"default_value": status, "runtime_key": "none"}}
    return {
        "filter": {
            "and_filter": {"filters": [{"status_code_filter": {"comparison": matches}}, {"or_filter": _is_rest()}]}
        },
        "body_format_override": {
            "json_format": {"code": code, "message": "%LOCAL_REPLY_BODY%", "details": []},
        },
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
    expression = "'x-envoy-original-path' in request.headers"
    cel = any_of("extensions.access_loggers.filters.cel.v3.ExpressionFilter", expression=expression)
    return {"filters": [plain, {"extension_filter": {"name": "cel", "typed_config": cel}}]}
