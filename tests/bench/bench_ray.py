"""Ray as what starts the nodes: how soon they run, how soon they are back, what it costs.

An Ape-X of a learner and two collectors, which all import torch, on a Ray of several machines
that are all this one. Five times it is started, trains, has a collector killed and then the
whole machine of the other one; in between the same program runs on processes of its own, by the
engine `local`. Without Ray, which is an extra, there is nothing to measure.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from importlib.util import find_spec

from tests.bench.harness import Row, row_from_samples, run_program

REPEATS = 5
PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from ding_lite import Parallel, Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.rl import DQN, DQNConfig, make_envs

ROLES = ["learner", "collector", "collector"]
ON_A, ON_B = {"resources": {"a": 1}}, {"resources": {"b": 1}}
WARM_UP_S, WINDOW_S = 2.0, 4.0
FIFO, GO = Path("said").absolute(), Path("go").absolute()

def say(*words):
    with FIFO.open("w") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def main(waits):
    node = World.current().node_id
    say("began", node, time.time())
    collectors = World.current().group("collector")
    envs = make_envs("CartPole-v1", num_envs=8, seed=World.current().node_seed)
    policy = DQN(envs.spec, DQNConfig(lr=3e-3, batch_size=128))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=50_000, alpha=0.6)
    marks = []

    def count(ctx):
        now = time.monotonic()
        if not marks and ctx.get("train_iter", 0) > 0:
            marks.append((now, 0))
        elif len(marks) == 1 and now > marks[0][0] + WARM_UP_S:
            marks.append((now, ctx.env_step))
        elif len(marks) == 2 and now > marks[1][0] + WINDOW_S:
            marks.append((now, ctx.env_step))
            say("measured", node)
        ctx.finish = len(marks) == 3 and (not waits or GO.exists())

    def take_part(ctx):
        if ctx.total_step == 1:
            machine = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
            say("up", node, os.getpid(), machine)

    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy))
        collector.use(mw.collect(policy, envs, steps=8, epsilon=lambda _: 0.2))
        collector.use(mw.add_to(replay)).use(take_part)
        learner.use(mw.wait_for(replay, size=500))
        learner.use(mw.train(policy, replay)).use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy, every=10))
        learner.use(mw.count_collected("collector")).use(count)
        task.run()
    if marks:
        (_, (first, before), (last, after)) = marks
        return (last - first) / (after - before)

def disturb(cluster, lines, numbers):
    '''Kill collector 1, and then the machine of collector 2; note when they collect again.'''
    def wait_for(*beginning):
        while (words := next(lines).split())[: len(beginning)] != [*beginning]:
            said[words[0], words[1]] = words[2:]
    said, called = {}, time.time()
    wait_for("measured")
    numbers["start"] = max(float(said["began", node][0]) for node in "012") - called
    began = time.monotonic()
    os.kill(int(said["up", "1"][0]), signal.SIGKILL)
    wait_for("up", "1")
    numbers["killed"] = time.monotonic() - began
    [machine] = [m for m in cluster.worker_nodes if m.node_id == said["up", "2"][1]]
    began = time.monotonic()
    cluster.remove_node(machine, allow_graceful=False)
    wait_for("up", "2")
    numbers["lost"] = time.monotonic() - began
    GO.touch()

if __name__ == "__main__":
    os.mkfifo(FIFO)
    lines = open(os.open(FIFO, os.O_RDWR))  # which never comes to an end
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"a": 9}})
    ray.init(address=cluster.address)
    runner = Parallel.runner(
        3, roles=ROLES, engine="ray", auto_recover=True,
        resources={"node.[01]": ON_A, "node.2": ON_B},
    )
    for _ in range(int(sys.argv[1])):
        numbers = {"local": Parallel.runner(3, roles=ROLES)(main, False)[0]}
        while len(cluster.worker_nodes) < 2:  # the one where node 2 will be is lost again
            cluster.add_node(num_cpus=2, resources={"b": 9})
        while "measured" not in next(lines):
            pass
        GO.unlink(missing_ok=True)
        thread = threading.Thread(target=disturb, args=(cluster, lines, numbers))
        thread.start()
        numbers["ray"] = runner(main, True)[0]
        thread.join()
        print(json.dumps(numbers), flush=True)
    ray.shutdown()
    cluster.shutdown()
"""


def run() -> list[Row]:
    """Measure on a Ray of two machines; nothing where Ray is not installed."""
    if find_spec("ray") is None:
        return []
    samples = measure(REPEATS)
    seconds = {
        "start": ("Ray, two machines: from the call to every node's `main`", 5.0),
        "killed": ("Ray: from the kill of a collector to its next step", 5.0),
        "lost": (
            "Ray: from the kill of a machine to the next step of its collector on another one",
            30.0,
        ),
    }
    return [
        *(
            row_from_samples(name, samples[key], unit="s", target=target)
            for key, (name, target) in seconds.items()
        ),
        row_from_samples(
            "Ape-X under Ray, 2 collectors of 8 envs and a learner: one env step",
            samples["ray"],
            baseline=samples["local"],
            baseline_name="the engine `local`, with as many processes",
            unit="us",
            target=1.11,
        ),
    ]


def measure(repeats: int) -> dict[str, list[float]]:
    """Run the program in a folder of its own, and gather what it prints."""
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environ["RAY_LOG_TO_DRIVER"] = "0"
    samples: dict[str, list[float]] = defaultdict(list)
    for line in run_program(PROGRAM, str(repeats), **environ).splitlines():
        if line.startswith("{"):
            for name, seconds in json.loads(line).items():
                samples[name].append(seconds)
    return samples
