"""The installation's categories, as fan-out needs them: who gets an event when prefs cannot be asked.

Must not read files: `main` does, and hands the bytes in. What is wrong ends in one line that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from heliograph.type.v1 import notification_pb2

CHANNELS: Mapping[str, notification_pb2.Channel.ValueType] = {
    "inbox": notification_pb2.CHANNEL_INBOX,
    "live": notification_pb2.CHANNEL_LIVE,
}


class Category(msgspec.Struct, frozen=True):
    """What the registry says of a category; other keys belong to others.

    Attributes:
        channels: by which its notifications go, unless their recipient chose otherwise.
        enabled: whether they go to those who never chose.
        essential: goes out by this default when prefs does not answer; events of other categories wait.
    """

    channels: tuple[Literal["inbox", "live"], ...] = ("inbox", "live")
    enabled: bool = True
    essential: bool = False


class _Registry(msgspec.Struct, frozen=True):
    categories: dict[str, Category]


class RegistryError(ValueError):
    """A registry file that cannot be used: one line with the key."""


def read_categories(content: bytes) -> Mapping[str, Category]:
    """Returns every category.

    Raises:
        RegistryError: one line that names the key.
    """
    try:
        return msgspec.toml.decode(content, type=_Registry).categories
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise RegistryError(" ".join(str(error).split())) from None
