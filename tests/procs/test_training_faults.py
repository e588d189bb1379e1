"""Training through kill -9 of every role: A3C, Ape-X and IMPALA go on and solve, or end at once.

The target is a low one, so that a test stays short; what is learned after the kill decides, as
no node may end before the killed one is back and has taken part again.
"""

from __future__ import annotations

import os
import signal
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest

from tests.procs.killing import segments
from tests.procs.programs import Program, run, wait_until_gone

pytestmark = pytest.mark.deadline(60)
SLOW = pytest.mark.slow

COMMON = """
import pathlib
from dataclasses import replace
import numpy as np
from ding_lite import middleware as mw
from ding_lite.distributed import GradientServer, ShardedReplay, World
from ding_lite.rl import A2C, A2CConfig, DQN, DQNConfig, IMPALA, IMPALAConfig, make_envs

VICTIM, TARGET = {victim}, {target}

def begin_incarnation():
    # Count the starts of this node.
    node = World.current().node_id
    incarnation = len([*pathlib.Path().glob(f"incarnation-{node}-*")]) + 1
    pathlib.Path(f"incarnation-{node}-{incarnation}").touch()
    say("up", node, os.getpid())
    return incarnation

def take_part(ctx):
    # The killed node is back, and has collected or learned something again.
    if World.current().node_id == VICTIM and ctx.total_step == 5:
        pathlib.Path(f"back-{incarnation}").touch()

def end_when_solved(ctx):
    if ctx.get("train_iter", 0) >= 5 and not pathlib.Path("trained").exists():
        pathlib.Path("trained").touch()
        say("trained")
    is_back = any(path.name != "back-1" for path in pathlib.Path().glob("back-*"))
    ctx.finish = is_back and ctx.get("eval_value", 0.0) >= TARGET
    if ctx.finish:
        pathlib.Path("solved").touch()
        say("solved", ctx.eval_value)
"""

IMPALA = """
def main():
    global incarnation
    incarnation = begin_incarnation()
    seed = World.current().node_seed
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=seed + n) for n in (8, 20))
    policy = IMPALA(envs.spec, IMPALAConfig(seed=seed))
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy, max_staleness=4))
        collector.use(mw.collect(policy, envs, unroll=16))
        collector.use(mw.send("trajectories", to="learner", in_flight=2))
        learner.use(mw.receive("trajectories", at_least=2))
        learner.use(mw.train(policy)).use(mw.publish_weights(policy))
        learner.use(mw.evaluate(policy, eval_envs, every=10))
        task.use(take_part)
        learner.use(end_when_solved)
        task.run()

ROLES, TOPOLOGY = ["learner", "collector", "collector"], "star"
"""

A3C = """
def main():
    global incarnation
    incarnation = begin_incarnation()
    world = World.current()
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=world.node_seed + n) for n in (8, 20))
    policy = A2C(envs.spec, A2CConfig(lr=1e-3, seed=world.node_seed))
    server = GradientServer(world.group("server"), policy, max_staleness=16)
    with Task() as task:
        agent, owner = task.at("agent"), task.at("server.0")
        agent.use(mw.pull_weights(policy, server))
        agent.use(mw.collect(policy, envs, unroll=16))
        agent.use(mw.push_gradients(policy, server))
        owner.use(mw.serve_gradients(policy, server, updates=5))
        owner.use(mw.evaluate(policy, eval_envs, every=4))
        task.use(lambda ctx: task.match_labels("server.1") and task.wait_for("never"))
        task.use(take_part)
        owner.use(end_when_solved)
        task.run()

ROLES, TOPOLOGY = ["server", "agent", "agent"], "star"
"""

APEX = """
def main():
    global incarnation
    incarnation = begin_incarnation()
    world = World.current()
    collectors = world.group("collector")
    envs, eval_envs = (make_envs("CartPole-v1", n, seed=world.node_seed + n) for n in (8, 20))
    policy = DQN(envs.spec, DQNConfig(lr=3e-3, hidden=(64, 64), seed=world.node_seed))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=20_000)
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(mw.fetch_weights(policy))
        collector.use(mw.rate_limit(env_steps_per_update=1.0, ahead=400))
        collector.use(mw.collect(policy, envs, steps=8, epsilon=lambda _: 0.2))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=500))
        learner.use(mw.train(policy, replay, updates=4)).use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy, every=2))
        learner.use(mw.evaluate(policy, eval_envs, every=50))
        task.use(take_part)
        learner.use(end_when_solved)
        task.run()

ROLES, TOPOLOGY = ["learner", "collector", "collector"], "mesh"
"""

RUN = """
if __name__ == "__main__":
    runner = Parallel.runner(3, TOPOLOGY, roles=ROLES, auto_recover={recover})
    runner(main)
    print("ended")
"""
METHODS = {"impala": IMPALA, "a3c": A3C, "apex": APEX}


def program_of(method: str, *, victim: int, recover: bool, target: float) -> str:
    text = COMMON.replace("{victim}", str(victim)).replace("{target}", str(target))
    return text + METHODS[method] + RUN.replace("{recover}", str(recover))


def trains_through_a_kill(folder: Path, method: str, victim: int, target: float) -> None:
    source = program_of(method, victim=victim, recover=True, target=target)
    with Program(folder, source) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[victim], signal.SIGKILL)
        pids |= {victim + 10: program.pids(1)[victim]}
        program.line("solved")
        code, said = program.end()
        assert (code, said.splitlines()[-1]) == (0, "ended"), said
        wait_until_gone(*pids.values())
        assert program.left_over() == []
    assert segments(pids.values()) == []


@pytest.mark.parametrize(  # Ape-X: test_distributed_learning.py
    ("method", "victim"),
    [
        ("impala", 0),
        ("a3c", 1),
        pytest.param("impala", 1, marks=SLOW),
        pytest.param("a3c", 0, marks=SLOW),
    ],
)
def test_training_goes_on_and_solves_when_a_node_is_killed(
    folder: Path, method: str, victim: int
) -> None:
    trains_through_a_kill(folder, method, victim, target=60.0)


@pytest.mark.slow
@pytest.mark.deadline(180)
@pytest.mark.parametrize("victim", [0, 1], ids=["node 0", "another"])
@pytest.mark.parametrize("method", METHODS)
def test_training_goes_on_to_its_real_target_when_a_node_is_killed(
    folder: Path, method: str, victim: int
) -> None:
    trains_through_a_kill(folder, method, victim, target=475.0)


@pytest.mark.parametrize(
    ("method", "victim"),
    [("impala", 0), *(pytest.param(method, 1, marks=SLOW) for method in ("a3c", "apex"))],
)
def test_without_auto_recover_a_kill_ends_the_job_and_leaves_nothing(
    folder: Path, method: str, victim: int
) -> None:
    source = program_of(method, victim=victim, recover=False, target=1e9)
    with Program(folder, source) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[victim], signal.SIGKILL)
        code, said = program.end()
        assert code == 1, said
        assert "NodeFailed" in said
        assert f"Node {victim} (process {pids[victim]}) was killed by SIGKILL" in said
        wait_until_gone(*pids.values())
        assert program.left_over() == []
    assert segments(pids.values()) == []


# -- the gradient server's books -----------------------------------------------------------

PUSHES = """
import numpy as np, torch
from ding_lite.distributed import GradientServer, World
from ding_lite.rl import A2C, A2CConfig, make_envs

NUM_NODES, NUM_KILLS = {num_nodes}, {num_kills}
books = np.memmap("books", np.int64, "r+", shape=(NUM_NODES, 2))  # pushes begun, and answered

def main():
    world = World.current()
    node, spec = world.node_id, make_envs("CartPole-v1", 1).spec
    policy = A2C(spec, A2CConfig(hidden=(8,)))
    servers = world.group("server")
    server = GradientServer(servers, policy, max_staleness=2)
    grad_P = torch.full((sum(w.numel() for w in policy.weights().values()),), 1e-3)
    with Task() as task:
        def push(ctx):
            if ctx.total_step % 4 == 0:
                server.pull(policy, until=lambda: ctx.finish)
            books[node, 0] += 1
            receipt = server.push(grad_P, until=lambda: ctx.finish)
            books[node, 1] += receipt is not None
        task.use(push, "agent")
        task.use(lambda ctx: server.wait_for_updates(50, until=lambda: ctx.finish), "server.0")
        def look(ctx):
            if os.path.exists("enough") and server.version > 200:
                ctx.finish = True
        task.use(look, "server.0")
        task.use(lambda ctx: task.wait_for("never"), "server.1")
        say("up", node, os.getpid())
        task.run()
    # Whoever has got an answer was counted before; when all have left, nobody pushes any more.
    world.group("node.*").barrier()
    return server.num_applied, server.num_refused, server.version

if __name__ == "__main__":
    roles = {roles}
    print(Parallel.runner(NUM_NODES, roles=roles, auto_recover=True, max_retries=9)(main)[0])
"""


@pytest.mark.parametrize("num_servers", [pytest.param(1, marks=SLOW), 2])
def test_every_gradient_is_applied_or_refused_also_when_senders_are_killed(
    folder: Path, num_servers: int
) -> None:
    num_agents, num_kills = 3, 2
    num_nodes = num_servers + num_agents
    roles = num_servers * ["server"] + num_agents * ["agent"]
    books = np.memmap(folder / "books", np.int64, "w+", shape=(num_nodes, 2))
    source = PUSHES.replace("{num_nodes}", str(num_nodes)).replace("{roles}", str(roles))
    with Program(folder, source.replace("{num_kills}", str(num_kills))) as program:
        pids = program.pids(num_nodes)
        for k in range(num_kills):
            victim = num_servers + k % num_agents
            seen = books[victim, 1]
            while books[victim, 1] < seen + 10:  # it is pushing
                os.sched_yield()
            os.kill(pids[victim], signal.SIGKILL)
            pids |= program.pids(1)
        (folder / "enough").touch()
        code, said = program.end()
    assert code == 0, said
    applied, refused, version = literal_eval(said.splitlines()[-1])
    begun, answered = books.sum(axis=0).tolist()
    # The last item that a killed agent had begun may be lost or not; all others are known.
    assert answered <= applied + refused <= begun <= answered + num_kills
    assert refused > 0
    assert version <= applied


# -- slow nodes ----------------------------------------------------------------------------

PACES = """
import numpy as np
from contextlib import suppress
from ding_lite import middleware as mw
from ding_lite.distributed import GradientServer, ShardedReplay, World
from ding_lite.errors import DeadlineExceeded
from ding_lite.rl import A2C, A2CConfig, DQN, DQNConfig, make_envs

SLOW, FAST_S, SLOW_S = "{slow}", 0.0005, 0.05

def memory():
    status = open("/proc/self/status").read().split()
    return int(status[status.index("RssAnon:") + 1]) / 1024

def pause(task):
    seconds = SLOW_S if task.match_labels(SLOW) else FAST_S
    def _pause(ctx):
        with suppress(DeadlineExceeded):
            task.wait_for("nothing", timeout=seconds)
    return _pause

def apex():
    world = World.current()
    collectors = world.group("collector")
    envs = make_envs("CartPole-v1", 8, seed=world.node_seed)
    policy = DQN(envs.spec, DQNConfig(hidden=(8,), batch_size=16))
    replay, updates = ShardedReplay(collectors, envs.spec, shard_capacity=2_000), [0]
    with Task() as task:
        collector, learner = task.at("collector"), task.at("learner")
        collector.use(pause(task)).use(mw.fetch_weights(policy))
        collector.use(mw.rate_limit(env_steps_per_update=8.0, ahead=100, at_first=100))
        collector.use(mw.collect(policy, envs, steps=8, epsilon=lambda _: 1.0))
        collector.use(mw.add_to(replay))
        learner.use(mw.wait_for(replay, size=100)).use(pause(task))
        learner.use(mw.train(policy, replay)).use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy)).use(mw.stop_at(train_iter=25))
        before = memory()
        task.run()
    return round(memory() - before), task.ctx.get("env_step", 0), task.ctx.get("train_iter", 0)

def a3c():
    world = World.current()
    envs = make_envs("CartPole-v1", 2, seed=world.node_seed)
    policy = A2C(envs.spec, A2CConfig(hidden=(8,)))
    server = GradientServer(world.group("learner"), policy, max_staleness=20)
    with Task() as task:
        agent, owner = task.at("collector"), task.at("learner")
        agent.use(mw.pull_weights(policy, server)).use(mw.collect(policy, envs, unroll=4))
        agent.use(pause(task)).use(mw.push_gradients(policy, server))
        owner.use(mw.serve_gradients(policy, server, updates=1)).use(pause(task))
        owner.use(mw.stop_at(train_iter=25))
        before = memory()
        task.run()
    return round(memory() - before), task.ctx.get("env_step", 0), task.ctx.get("train_iter", 0)

if __name__ == "__main__":
    print(Parallel.runner(3, "mesh", roles=["learner", "collector", "collector"])({main}))
"""


@pytest.mark.parametrize(
    ("main", "slow"),
    [
        ("apex", "learner"),
        pytest.param("apex", "collector", marks=SLOW),
        pytest.param("a3c", "collector.0", marks=SLOW),
    ],
)
def test_memory_stays_and_nothing_hangs_when_one_node_is_a_hundred_times_slower(
    folder: Path, main: str, slow: str
) -> None:
    source = PACES.replace("{slow}", slow).replace("{main}", main)
    code, said = run(folder, source)
    assert code == 0, said
    learner, *collectors = literal_eval(said.splitlines()[-1])
    assert learner[2] >= 25
    assert max(megabytes for megabytes, *_ in (learner, *collectors)) < 30, said
    if main == "apex" and slow == "learner":  # 25 updates, 8 env steps each, and 100 ahead
        assert max(env_steps for _, env_steps, _ in collectors) < 600, said
