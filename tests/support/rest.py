"""The REST routes of the contract, read from its descriptors. It must not know any route by name."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from google.api import annotations_pb2
from google.protobuf.descriptor import MethodDescriptor

from heliograph.access.v1 import access_pb2
from mesh.access import PRODUCER, RECIPIENT, roles_of
from tests.support import contract


class Route(NamedTuple):
    """One method as it is called over REST.

    Attributes:
        method: the HTTP method.
        path: the path.
        has_body: the request is the body; otherwise it is the query.
        roles: who may call it.
        called: full name of the method behind it.
    """

    method: str
    path: str
    has_body: bool
    roles: frozenset[str]
    called: str

    @property
    def label(self) -> str:
        """Method and path, as people write it."""
        return f"{self.method} {self.path}"

    @property
    def role(self) -> str:
        """Whose token opens it."""
        return PRODUCER if PRODUCER in self.roles else RECIPIENT

    def request(self, fields: dict[str, Any]) -> tuple[str, str]:
        """Returns path with query, and body, of a request with these fields."""
        if self.has_body:
            return self.path, json.dumps(fields)
        query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
        return f"{self.path}?{urlencode(query)}" if query else self.path, ""


def routes() -> tuple[Route, ...]:
    """Returns every route of the contract, in the contract's order."""
    return tuple(
        _route(method)
        for service in contract.services().values()
        for method in service.methods
        if method.GetOptions().HasExtension(annotations_pb2.http)
    )


def _route(method: MethodDescriptor) -> Route:
    options = method.GetOptions()
    rule = options.Extensions[annotations_pb2.http]
    verb = rule.WhichOneof("pattern")
    roles = roles_of(options.Extensions[access_pb2.callers], access_pb2.Caller.DESCRIPTOR, method.full_name)
    return Route(verb.upper(), getattr(rule, verb), rule.body == "*", roles, method.full_name)
