"""A channel that no version of the contract knows, and a prefs that has it at the end of what everybody wants.

For tests of what comes behind live. It must not send anything.
"""

from __future__ import annotations

from typing import Any, Final

from heliograph.prefs.v1 import prefs_service_pb2
from svc_prefs.service import PrefsService

# It reaches its sender by number alone.
CHANNEL: Final = 100


class ChannelledPrefs(PrefsService):
    """Prefs, with the channel behind all others wherever there are any."""

    async def BatchResolve(
        # Any: as in the service itself.
        self,
        request: prefs_service_pb2.BatchResolveRequest,
        context: Any,
    ) -> prefs_service_pb2.BatchResolveResponse:
        """Decides for many recipients at once."""
        answer = await super().BatchResolve(request, context)
        for item in answer.items:
            for resolution in (item.default_resolution, *(group.resolution for group in item.groups)):
                if resolution.channels:
                    resolution.channels.append(CHANNEL)  # type: ignore[arg-type]  # a channel of tests
        return answer
