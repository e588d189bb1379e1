"""Train a DQN on one node while another one evaluates it.

Node 0 learns and puts its newest weights on the ctx, which the runtime sends to the other nodes.
Node 1 waits for weights newer than its own, evaluates them, and emits the result. With
`--nodes 1` the same file does both in one process, in order. The model is a plain `nn.Module`:
change it, and all of this works with it.
"""

from collections import deque
from collections.abc import Mapping

from torch import Tensor, nn

from ding_lite import Context, Middleware, Parallel, Task, middleware as mw
from ding_lite.recipes import Options, Run, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, Envs, EnvSpec, ReplayBuffer, linear, make_envs, mean_return

HERE = ("standalone", "node.0")
ELSEWHERE = ("standalone", "node.[!0]*")
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), two evaluators (--nodes 3), another seed
(--seed 1), a harder task (--env Acrobot-v1 --target -100), or change this program:
examples/evaluate_elsewhere.py is the whole of it."""


class Model(nn.Module):
    """DI-engine's model of a DQN: an encoder of observations, and a head for the values."""

    def __init__(self, obs_shape: int, action_shape: int) -> None:
        """Make the layers."""
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(obs_shape, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.head = nn.Linear(64, action_shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Compute the values, [B, A]."""
        logit: Tensor = self.head(self.encoder(obs))
        return logit


def make_network(spec: EnvSpec) -> Model:
    """Make a network of the environments' sizes."""
    return Model(spec.obs_shape[0], spec.num_actions or 0)


def make_policy(spec: EnvSpec, config: DQNConfig) -> DQN:
    """Make a DQN with this model."""
    return DQN(spec, config, network=make_network)


def share_weights(task: Task, policy: DQN) -> Middleware:
    """Put the weights on the ctx, which is sent to the other nodes at the end of the step."""

    def _share_weights(ctx: Context) -> None:
        if task.router.is_active:
            ctx.state_dict = policy.weights()

    return _share_weights


def evaluate(task: Task, policy: DQN, envs: Envs, *, every: int, target: float) -> Middleware:
    """Evaluate every `every` steps; on a separate node, each time newer weights arrive."""

    def _evaluate(ctx: Context) -> None:
        if task.router.is_active:
            known = ctx.setdefault("train_iter", 0)
            if task.wait_parallel_ctx(newer_than={"train_iter": known}) is None:
                return  # the job ends
            newest = task.parallel_ctx.of("node.0")
            policy.load_weights(newest.state_dict)
            ctx.train_iter = newest.train_iter
            ctx.keep("train_iter")
        elif (ctx.total_step + 1) % every:
            return

        value = mean_return(policy, envs)
        if value >= target:  # the best of many noisy evaluations is too high: repeat it
            value = mean_return(policy, envs)
        task.emit("evaluated", value, policy.weights() if value >= target else None)

    return _evaluate


def report_evaluations(task: Task, policy: DQN, *, target: float) -> Middleware:
    """Report the results of evaluations, and end the job once one has reached the target."""
    received: deque[tuple[float, Mapping[str, Tensor] | None]] = deque()
    task.on("evaluated", lambda value, weights: received.append((value, weights)))

    def _report_evaluations(ctx: Context) -> None:
        while received and not ctx.finish:
            ctx.eval_value, good = received.popleft()
            ctx.metrics["eval_return"] = ctx.eval_value
            if good is not None:
                policy.load_weights(good)  # the evaluated weights; training has continued
                ctx.finish = True

    return _report_evaluations


def main(options: Options, config: DQNConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    node_id = Parallel().node_id
    envs = make_envs(options.env, num_envs=8, seed=options.seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=options.seed + 1 + node_id)
    policy = make_policy(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=50_000, seed=options.seed)
    epsilon = linear(1.0, 0.1, steps=5_000)

    with Task() as task:
        parts = {"policy": policy, "replay": replay, "envs": envs, "task": task}
        here, elsewhere = task.at(*HERE), task.at(*ELSEWHERE)
        here.use(mw.collect(policy, envs, steps=8, epsilon=epsilon))
        here.use(mw.add_to(replay))
        here.use(mw.train(policy, replay, batch_size=128, updates=8))
        here.use(share_weights(task, policy))
        elsewhere.use(evaluate(task, policy, eval_envs, every=125, target=options.target))
        here.use(report_evaluations(task, policy, target=options.target))
        here.use(mw.stop_at(env_step=options.max_env_steps))
        here.use(mw.checkpoint(parts, run.checkpoint, every=1_000))
        here.use(run.time(task))
        here.use(mw.report(run, every=25, title=f"DQN on {options.env}"))
        if task.match_labels(HERE):
            run.resume(parts)
        task.run()
    return policy.weights()


def launch() -> None:
    """Start the nodes with the options of the command line, and judge what they have learned."""
    options = parse_options(__doc__, env="CartPole-v1", max_env_steps=50_000, target=475.0, nodes=2)
    config = DQNConfig(lr=3e-3, n_step=3, target_tau=0.01, seed=options.seed)
    with make_envs(options.env, num_envs=1) as envs:
        policy = make_policy(envs.spec, config)

    with Run("evaluate_elsewhere", options, config=config) as run:
        runner = Parallel.runner(
            n_parallel_workers=options.nodes, topology="star", auto_recover=True
        )
        policy.load_weights(run.of_node_0(runner(main, options, config, run)))
        run.conclude(policy, try_next=TRY_NEXT)


if __name__ == "__main__":
    run_program(launch)
