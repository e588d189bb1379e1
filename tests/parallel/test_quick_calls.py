"""Quick handlers run on the thread that reads messages."""

from __future__ import annotations

import threading

import pytest

from ding_lite.errors import RemoteError
from ding_lite.testing import Cluster


def test_a_quick_handler_runs_on_the_reading_thread_and_may_raise() -> None:
    with Cluster(2) as cluster:
        asker, answerer = cluster.routers
        answerer.register("quick", lambda: threading.current_thread().name, quick=True)
        answerer.register("slow", lambda: threading.current_thread().name)
        answerer.register("broken", lambda: 1 / 0, quick=True)
        assert "worker" in asker.call(1, "slow")
        assert "worker" not in asker.call(1, "quick")
        with pytest.raises(RemoteError, match="ZeroDivisionError on node 1"):
            asker.call(1, "broken")
        assert asker.call(1, "quick")
