"""A Ray of its own, four actors that answer once, and the end of both."""

import sys
import time

import ray
from measuring import age, settings, tell

imports = settings()["nodes import"]


@ray.remote
class Node:
    def main(self):
        if imports == "torch":
            import torch  # noqa: F401 - this is what is timed
        return "torch" in sys.modules


began = time.perf_counter()
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
nodes = [Node.remote() for _ in range(4)]
results = ray.get([node.main.remote() for node in nodes])
ray.shutdown()
seconds = time.perf_counter() - began
assert results == [imports == "torch"] * 4
tell("ray", **{"call to result": seconds, "whole program": age()})
