"""The installation's categories, as prefs needs them.

Pure: `main` reads the file and hands its text in. What is wrong ends in one line that names the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from mesh.errors import StartError

ChannelName: TypeAlias = Literal["inbox", "live"]


class Category(msgspec.Struct, frozen=True):
    """What the registry says of a category, as far as wishes are concerned.

    Attributes:
        channels: how it reaches people, in order; the first is the inbox.
        enabled: whether people get it before they chose.
        mandatory: a recipient can neither switch it off nor mute it.
        fixed_channels: channels of a mandatory category that a recipient cannot switch off, beside the inbox.
        essential: goes by its default when wishes cannot be read; that is for whoever asks prefs in vain.
    """

    channels: tuple[ChannelName, ...] = ("inbox", "live")
    enabled: bool = True
    mandatory: bool = False
    fixed_channels: tuple[ChannelName, ...] = ()
    essential: bool = False


class _Registry(msgspec.Struct, frozen=True):
    categories: dict[str, Category]


Registry: TypeAlias = Mapping[str, Category]

# A category that ingest knows and this process does not (registries are rolled out one by one) is delivered.
UNKNOWN = Category()


def parse_registry(text: str, source: str) -> Registry:
    """Reads the registry of categories.

    Args:
        text: TOML with a table `categories`.
        source: where it is from, for the error.

    Raises:
        StartError: it is not TOML or breaks the shape; one line with file and key.
    """
    try:
        registry = msgspec.convert(tomllib.loads(text), _Registry).categories
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise StartError(f"categories file {source}: {error}; correct it") from None
    if not registry:
        raise StartError(f"categories file {source}: has no category; add [categories.<name>]")
    for name, category in registry.items():
        if fault := _fault(category):
            raise StartError(f"categories file {source}: categories.{name}.{fault}")
    return registry


def _fault(category: Category) -> str:
    if category.channels[:1] != ("inbox",) or len(set(category.channels)) != len(category.channels):
        return "channels must start with inbox and name each channel once"
    if category.mandatory and not category.enabled:
        return "enabled must be true where mandatory is"
    if category.fixed_channels and not category.mandatory:
        return "fixed_channels needs mandatory = true"
    if not set(category.fixed_channels) <= set(category.channels):
        return "fixed_channels must be among channels"
    return ""
