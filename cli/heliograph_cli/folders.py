"""Where things lie: the state folder's parts, the short folder for sockets, the files that come with the package.

Must not start or read anything; it makes folders only when told to.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import msgspec

from heliograph_cli.failures import USAGE, CommandFailed

DEFAULT_STATE_DIR = Path(".heliograph")


class Folders(msgspec.Struct, frozen=True):
    """The folders of one `heliograph up`, all absolute.

    Attributes:
        state: the state folder.
        run: the folder for Unix sockets; short, as a socket's path may have 107 bytes.
    """

    state: Path
    run: Path

    @property
    def data(self) -> Path:
        """Embedded stores."""
        return self.state / "data"

    @property
    def certs(self) -> Path:
        """Certificates and keys."""
        return self.state / "certs"

    @property
    def mesh(self) -> Path:
        """Rendered Envoy files."""
        return self.state / "mesh"

    @property
    def log(self) -> Path:
        """A log file a process."""
        return self.state / "log"

    @property
    def lock(self) -> Path:
        """Held by the `heliograph up` that runs with this state."""
        return self.state / "up.lock"

    @property
    def record(self) -> Path:
        """What runs, for the other commands."""
        return self.state / "up.json"

    @property
    def token_key(self) -> Path:
        """The private key that development tokens are signed with."""
        return self.certs / "tokens" / "signing.pem"

    @property
    def token_keys(self) -> Path:
        """The public keys that services check tokens by."""
        return self.certs / "tokens" / "jwks.json"

    def make(self) -> None:
        """Makes all folders, for their owner only.

        Raises:
            CommandFailed: one cannot be made, or the one for sockets is not ours alone.
        """
        for folder in (self.state, self.data, self.certs, self.mesh, self.log, self.run):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise CommandFailed(f"{folder}: {error.strerror}; choose another --state-dir", USAGE) from None
        _refuse_foreign(self.run)


def folders(state_dir: Path, runtime_root: str | None = None) -> Folders:
    """Returns the folders that belong to a state folder.

    Args:
        state_dir: the state folder, absolute or not.
        runtime_root: where the folder for sockets lies; $XDG_RUNTIME_DIR or the system's temporary folder if left out.
    """
    state = Path(os.path.abspath(state_dir))
    root = runtime_root or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    digest = hashlib.blake2b(os.fsencode(state), digest_size=5).hexdigest()
    return Folders(state=state, run=Path(root) / f"hg-{digest}")


def deploy_file(name: str) -> Path:
    """Returns a file of `deploy/`: from the installed package, else from the source tree.

    Raises:
        CommandFailed: it is in neither.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "deploy", here.parents[1] / "deploy"):
        if (folder / name).is_file():
            return folder / name
    raise CommandFailed(f"{name}: is missing from this installation; install it again", USAGE)


def _refuse_foreign(folder: Path) -> None:
    # In a temporary folder that all share, somebody else could have made it first and would own our sockets.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise CommandFailed(f"{folder}: belongs to somebody else; remove it or set XDG_RUNTIME_DIR", USAGE)
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
