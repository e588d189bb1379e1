"""Evolve DQNs in processes that Hugging Face Accelerate connects: one population for all of them.

Each process collects for all agents and trains them. Then weights are averaged, all processes
evaluate the agents, and the main process makes the next generation and sends it to all. Start it
with `torchrun --nproc-per-node 2 examples/evolve_accelerate.py`, or with `accelerate launch
--multi_gpu --num_processes 2 examples/evolve_accelerate.py`, which needs no GPU in spite of the
name. Started without a launcher it is the only process.
"""

from contextlib import ExitStack
from dataclasses import replace

from ding_lite import Agent, Middleware, Task, middleware as mw
from ding_lite.distributed import Processes
from ding_lite.evolution import Mutation, Population, Search, Tournament, integer, log_uniform
from ding_lite.recipes import Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, ReplayBuffer, make_envs

TRY_NEXT = """\
Try next: two processes (torchrun --nproc-per-node 2 examples/evolve_accelerate.py), another seed
(--seed 1), or change this program: examples/evolve_accelerate.py is the whole of it."""


def main() -> None:
    """Evolve with the options of the command line."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=200_000, target=475.0)
    processes = Processes()
    options = replace(options, nodes=processes.size)
    seed = processes.seed(options.seed)  # another one on each process
    envs = make_envs(options.env, num_envs=8, seed=seed)
    limit = {"max_episode_steps": 25} if options.smoke else {}
    eval_envs = make_envs(options.env, num_envs=2, seed=seed + 1, env_args=limit)
    search = Search(lr=log_uniform(1e-3, 5e-3), batch_size=integer(32, 128))
    config = DQNConfig(hidden=(64, 64), epsilon_steps=1_000)
    population = Population.of(DQN, envs.spec, search, size=6, seed=options.seed, config=config)
    replay = processes.prepare(ReplayBuffer(envs.spec, capacity=50_000, seed=seed))
    # One turn of each agent is a generation: the processes wait for each other once in that time.
    turn = 64 if options.smoke else 640

    def learn(agent: Agent) -> list[Middleware]:
        return [
            mw.collect(agent, envs, steps=turn),
            mw.add_to(replay),
            mw.train(agent, replay, updates=turn),
        ]

    with ExitStack() as stack:
        task, run = stack.enter_context(Task()), None
        if processes.is_main:
            run = stack.enter_context(Run("evolve_accelerate", options, config=config))
        saved = processes.broadcast("where to save", run and str(run.checkpoint))
        goal = options.target
        task.use(mw.for_each(population, learn))
        task.use(mw.average_agents(population, processes))
        task.use(mw.evaluate(population, eval_envs, processes, every=1, stop_at=goal))
        task.use(mw.stop_at(env_step=options.max_env_steps))
        if run:
            tournament = Tournament(size=2, seed=options.seed)
            mutation = Mutation(search, seed=options.seed)
            lineage = run.directory / "lineage.jsonl"
            task.use(mw.evolve(population, tournament, mutation, every=1, lineage=lineage))
            task.use(run.time(task, every=1))
            task.use(mw.report(run, every=1, title=f"DQNs on {options.env}"))
        task.use(mw.share_generation(population, processes, every=1))
        parts = {"population": population, "replay": replay, "task": task}
        parts |= {"envs": envs, "eval_envs": eval_envs}
        task.use(mw.checkpoint(parts, saved, processes, every=1))
        if options.resume:
            found = mw.resume(parts, saved, processes)
            task.finish = found is not None and options.has_ended(found)
        task.run()
        if run:
            run.conclude(population.best.policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(main)
