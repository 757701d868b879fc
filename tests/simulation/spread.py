"""Work on as many processors as there are: what each piece comes to, in the order of the pieces.

A piece must not know of the others, and must come to the same whoever does it. A process of these ends with the one
that made it, however that one ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def spread(work: Callable[[Piece], Result], pieces: Iterable[Piece], processes: int) -> Iterator[Result]:
    """Yields what each piece comes to, in their order; what is under way when nobody wants more of it ends at once.

    Args:
        work: of one piece; a function of a module.
        pieces: of the work.
        processes: so many at once; with one, or one piece, all is done here.
    """
    waiting = list(pieces)
    count = min(processes, len(waiting))
    if count <= 1:
        yield from map(work, waiting)
        return
    # A copy of this process as it is: with the hashes it has, and whatever is replaced in it.
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _follow) as pool:
        futures = [pool.submit(work, piece) for piece in waiting]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _follow() -> None:
    """Ends this process with the one that made it; an interrupt is that one's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
