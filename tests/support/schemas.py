"""Judging JSON by the schemas of a generated document, strictly: what a schema does not name is wrong.

The documents themselves allow more fields, since clients must bear newer servers; a test must notice what is not
documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

# Any: JSON.
Document = Mapping[str, Any]


def faults(document: Document, schema: Mapping[str, Any], instance: Any) -> list[str]:
    """Returns what is wrong with an instance, one line each.

    Args:
        document: what the schema's references point into.
        schema: a schema, such as a reference.
        instance: JSON.
    """
    root = {**_strict(schema), "components": _strict(document["components"])}
    validator = Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(instance)]


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    found = {name: _strict(one) for name, one in value.items()}
    # A schema, and not a map that happens to have an entry of this name.
    if found.get("type") == "object" and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found
