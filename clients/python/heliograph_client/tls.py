"""Certificates for a connection to the edge.

Must not parse certificates: the libraries do; a file that cannot be read is named.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import msgspec

from heliograph_client.errors import InvalidArgument


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """What proves the server to the client and, if wanted, the client to the server.

    Attributes:
        ca_file: authorities that the server's certificate must come from, PEM; None: those of the system.
        certificate_file: the client's certificate with its chain, PEM; needs `key_file`.
        key_file: the private key to it, PEM.
        server_name: the name to ask for and to expect in the server's certificate; None: that of the address.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns credentials for a gRPC channel.

        Raises:
            InvalidArgument: a file cannot be read, or only one of certificate and key is given.
        """
        self._check()
        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca_file", self.ca_file),
            private_key=_read("key_file", self.key_file),
            certificate_chain=_read("certificate_file", self.certificate_file),
        )

    def context(self) -> ssl.SSLContext:
        """Returns a context for a WebSocket.

        Raises:
            InvalidArgument: a file cannot be read or used, or only one of certificate and key is given.
        """
        self._check()
        for field, path in (("ca_file", self.ca_file), ("certificate_file", self.certificate_file)):
            _read(field, path)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"tls: the files cannot be used: {error}", reason="FIELD_INVALID") from error
        return context

    def _check(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            text = "tls: certificate_file and key_file belong together; give both or neither"
            raise InvalidArgument(text, reason="FIELD_INVALID")


def _read(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        text = f"tls: {field} {path} cannot be read: {error.strerror}"
        raise InvalidArgument(text, reason="FIELD_INVALID", metadata={"field": field}) from error
