"""Outgoing calls: channels to peers, the headers every call carries, and unary calls with a deadline.

Path step: how a service reaches another one. Must not retry and must not call without a deadline; there are no client
interceptors, so a call costs what gRPC costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from mesh import options, status
from mesh.context import remaining, traceparent
from mesh.errors import DeadlineExceeded
from mesh.identity import CALLER_HEADER, TRACE_HEADER

Req = TypeVar("Req")
Res = TypeVar("Res")
Metadata = tuple[tuple[str, str], ...]

NODE_HEADER = "x-heliograph-node"
NODE_ADDRESS_HEADER = "x-heliograph-node-addr"
_GATEWAY = "gateway"


class Channels:
    """The channels of one process, made when first asked for and kept.

    Streams have channels of their own: a peer that resets many unary calls gets its whole connection closed, and the
    streams on it would go along.

    Args:
        service: the own service's name, the identity in direct mode.
        process: the own process's name, by which its sidecar's outbound socket is called.
        run_dir: the folder with all sockets.
        direct: call peers at their own sockets, without sidecars.
        trust_domain: the suffix of the names under which the sidecar knows peers.
    """

    def __init__(
        self, *, service: str, process: str, run_dir: Path, direct: bool, trust_domain: str = "heliograph.local"
    ) -> None:
        self._run_dir = run_dir
        self._direct = direct
        self._trust_domain = trust_domain
        self._sidecar = f"unix:{run_dir / process}.out"
        self._identity: Metadata = ((CALLER_HEADER, f"svc/{service}"),) if direct else ()
        self._unary: dict[str, grpc.aio.Channel] = {}
        self._streams: dict[str, grpc.aio.Channel] = {}
        self._nodes: dict[str, grpc.aio.Channel] = {}

    def unary(self, peer: str) -> grpc.aio.Channel:
        """Returns the channel for unary calls to a service. Call inside the running loop."""
        channel = self._unary.get(peer)
        if channel is None:
            channel = self._unary[peer] = self._open(peer, peer, own_connection=False)
        return channel

    def stream(self, peer: str) -> grpc.aio.Channel:
        """Returns the channel for streams to a service, on a connection of its own. Call inside the running loop."""
        channel = self._streams.get(peer)
        if channel is None:
            channel = self._streams[peer] = self._open(peer, peer, own_connection=True)
        return channel

    def node(self, node_id: str) -> grpc.aio.Channel:
        """Returns the channel for the stream to one gateway node; `release_node` gives it back.

        Behind a sidecar all nodes have one name, and the headers of `node_metadata` choose among them.
        """
        channel = self._nodes.get(node_id)
        if channel is None:
            channel = self._nodes[node_id] = self._open(node_id, _GATEWAY, own_connection=True)
        return channel

    async def release_node(self, node_id: str) -> None:
        """Closes the channel to a node that is gone; calls on it are cancelled."""
        channel = self._nodes.pop(node_id, None)
        if channel is not None:
            await channel.close()

    def metadata(self, **extra: str) -> Metadata:
        """Returns the headers of an outgoing call: identity in direct mode, the current call's trace, and `extra`.

        Args:
            extra: further headers; an underscore in a name becomes a hyphen.
        """
        metadata = self._identity
        trace = traceparent()
        if trace:
            metadata = (*metadata, (TRACE_HEADER, trace))
        if extra:
            metadata = (*metadata, *((name.replace("_", "-"), value) for name, value in extra.items()))
        return metadata

    def node_metadata(self, node_id: str, address: str) -> Metadata:
        """Returns the headers of the stream to one gateway node.

        Args:
            node_id: the process that is meant; its sidecar refuses the stream when it is not there.
            address: "ip:port" of the sidecar in front of it.
        """
        return (*self.metadata(), (NODE_HEADER, node_id), (NODE_ADDRESS_HEADER, address))

    async def close(self) -> None:
        """Closes all channels; calls that run are cancelled."""
        channels = [*self._unary.values(), *self._streams.values(), *self._nodes.values()]
        for kind in (self._unary, self._streams, self._nodes):
            kind.clear()
        for channel in channels:
            await channel.close()

    def _open(self, process: str, name: str, *, own_connection: bool) -> grpc.aio.Channel:
        # gRPC would bind the channel to some loop of its own making; this raises instead.
        asyncio.get_running_loop()
        if self._direct:
            return grpc.aio.insecure_channel(
                f"unix:{self._run_dir / process}.sock",
                options=options.channel_options(None, own_connection=own_connection),
            )
        return grpc.aio.insecure_channel(
            self._sidecar,
            options=options.channel_options(f"{name}.{self._trust_domain}", own_connection=own_connection),
        )


async def call(
    method: grpc.aio.UnaryUnaryMultiCallable[Req, Res],
    request: Req,
    *,
    timeout: float,
    metadata: Sequence[tuple[str, str]] = (),
) -> Res:
    """Makes a unary call; its deadline is `timeout` or what is left of the call being served, whichever is shorter.

    Args:
        method: a stub's method.
        request: its request.
        timeout: seconds.
        metadata: usually `Channels.metadata()`.

    Raises:
        Failure: the call failed; the category follows the status code, the reason the peer's.
    """
    left = remaining()
    if left is not None and left < timeout:
        if left <= 0:
            raise DeadlineExceeded("the time of the call being served is over", reason="DEADLINE_EXPIRED")
        timeout = left
    try:
        return await method(request, timeout=timeout, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        raise status.from_call(error) from error
