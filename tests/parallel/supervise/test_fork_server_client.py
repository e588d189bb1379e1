"""The client of the fork server."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.supervise.fork_server_client import ForkServerClient
from ding_lite.parallel.supervise.node_process import SIGNALS


def test_a_fork_server_blocks_signals_from_its_start(tmp_path: Path) -> None:
    directory, link = PrivateDirectory(tmp_path), ForkServerClient()
    try:
        link.start(directory, preload=(), sys_path=sys.path)
        assert link.pid is not None
        [blocked] = [
            int(line.split()[1], 16)
            for line in Path(f"/proc/{link.pid}/status").read_text().splitlines()
            if line.startswith("SigBlk")
        ]
        assert all(blocked >> (number - 1) & 1 for number in SIGNALS)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & SIGNALS  # here they are not
    finally:
        assert link.close()
        directory.remove()
