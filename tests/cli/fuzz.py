"""Command lines that mean well or harm, drawn at random; the same ones for the same seed."""

from __future__ import annotations

from random import Random

ENDS = {
    "train": ["--max-env-steps", "32"],
    "evolve": ["--max-env-steps", "32"],
    "watch": ["--episodes", "1"],
    "run": ["--startup-timeout", "30"],
}
"""What keeps a command line short that happens to be right: the last of two options holds."""
HUGE = [str(10**12), str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "1e18", "1e400"]
NUMBERS = [
    *("-1", "0", "1", "2", "7", "1.5", "-0.0", "1e-3", "nan", "inf", "-inf", "none", "true", ""),
    *("0x10", "1_0", "٣", "²", " 3", "3 ", "+3", "--3", "1,2", "8,", ",", "(8,8)", "[8]", "1e-400"),
    *HUGE,
]
WORDS = [
    *("", " ", "x", "dqn", "sac", "ppo", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "=", ":", "-"),
    *("--", "---", "-x", "--out", "--help", "\0", "a\0b", "\udcff", "é", "💥", "x" * 300, "*", "["),
    *("?", "[bold]", "%s", "{}", "$HOME", "~", "a,b", "a|b", "a=b", "a:b", "a+b", "a*2", "0-1"),
    *("tree:2", "program:nothing", "program:main", "program.py:nothing", "no_main:main"),
    *("program:take", "none.py:main", "program:", ":main", "program:inner"),
    *("star", "mesh", "alone", "ipc", "tcp"),
    *("lr=1e-3", "loss=mse", "lr=1e-4:1e-2:log", "batch_size=4:8", "loss=huber|mse", "eval_return"),
]
PATHS = [
    *("new", "new/deep", "run", "other-run", "half-config", "list-config", "no-config", "empty"),
    *("pipe-config", "broken-metrics", "half-manifest", "a-file", "a-file/x", "dangling", "loop"),
    *("pipe", "sub", "/dev/null", "/dev/full", "/proc/x", "/proc/self/x", "/sys/x", "/etc/passwd"),
    *("", "\0", "\udcff", "x" * 300, "/".join(["d"] * 3_000), "pictures.png", "new.png", "*", "r*"),
]
SETTINGS = [
    *("lr", "gamma", "n_step", "hidden", "batch_size", "capacity", "warmup", "update_ratio"),
    *("frame_stack", "reward_scale", "episode_limit", "eval_every", "checkpoint_every", "unroll"),
    *("log_every", "target_margin", "target_tau", "target_every", "epsilon_end", "epsilon_steps"),
    *("max_grad_norm", "prioritized", "priority_alpha", "double", "dueling", "loss", "torso"),
    *("activation", "turn", "mutation_sd", "mutate_none", "tournament_size", "window", "seed", "x"),
    *("alpha", "noise", "actor_lr", "critic_lr", "policy_delay", "clip", "epochs", "minibatches"),
]


def command_line(rng: Random) -> list[str]:
    command = rng.choice(["train"] * 4 + ["evolve"] * 3 + ["run"] * 3 + list(_OF_COMMAND))
    words = [command, *_OF_COMMAND[command](rng)]
    for _ in range(rng.choice((0, 0, 0, 1))):  # and now and then something at the wrong place
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS + NUMBERS))
    return [*words, *ENDS.get(words[0], [])]


def _learning(rng: Random, *, is_evolve: bool) -> list[str]:
    policy = rng.choice(["dqn"] * 6 + ["sac", "td3", "ddpg", "a2c", "ppo", "impala", _word(rng)])
    continuous = policy in ("sac", "td3", "ddpg")
    env = rng.choice(["Pendulum-v1" if continuous else "CartPole-v1"] * 8 + [_word(rng)])
    words = [policy, env, "--set", "hidden=4,", "--set", "eval_episodes=1"]
    if is_evolve:
        words += ["--population", "2"]
    else:
        words += ["--set", "confirm_episodes=0"]
    for _ in range(rng.randrange(4)):
        option = rng.choice(["--set"] * 5 + ["--num-envs", "--seed", "--target", "--out", "--out"])
        if is_evolve and rng.random() < 0.3:
            option = rng.choice(("--population", "--search"))
        words += [option, _value(rng, option)]
    return words + rng.choice(([], [], [], ["--resume"], ["--smoke"], ["--settings"]))


def _value(rng: Random, option: str) -> str:
    if option == "--set":
        return f"{rng.choice(SETTINGS)}={rng.choice([*NUMBERS, 'mse', 'relu', 'auto', 'x'])}"
    if option == "--search":
        values = [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 4))]
        return f"{rng.choice(SETTINGS)}={rng.choice(':|').join(values)}"
    if option in ("--out", "--record", "--key-file"):
        return rng.choice(PATHS)
    return rng.choice(NUMBERS) if option.startswith("--") else rng.choice(WORDS)


def _word(rng: Random) -> str:
    return rng.choice(WORDS + PATHS)


def _some(rng: Random, words: list[str], options: list[str], most: int) -> list[str]:
    for _ in range(rng.randrange(most)):
        option = rng.choice(options)
        words += [option, rng.choice((_value(rng, option), _word(rng)))]
    return words


def _run(rng: Random) -> list[str]:
    program = rng.choice(["program:nothing"] * 4 + [_word(rng)])
    options = ["--nodes", "--topology", "--roles", "--labels", "--protocol", "--address", "--ports"]
    return _some(rng, [program], [*options, "--key-file", "--max-retries"], 4)


_OF_COMMAND = {
    "train": lambda rng: _learning(rng, is_evolve=False),
    "evolve": lambda rng: _learning(rng, is_evolve=True),
    "plot": lambda rng: _some(rng, [rng.choice(PATHS)], ["--out", "--metric"], 3),
    "report": lambda rng: _some(rng, [rng.choice(PATHS), "--no-video"], ["--out", "--port"], 3),
    "runs": lambda rng: _some(rng, [rng.choice(PATHS)], ["--sort", "--json"], 3),
    "watch": lambda rng: _some(rng, [rng.choice(PATHS)], ["--record", "--seed"], 3),
    "run": _run,
    "top": lambda rng: ["no-such-job", *rng.choice(([], ["--once"], ["--json"], ["--every", "x"]))],
    "env": lambda rng: rng.choice(([], ["--json"], [_word(rng)])),
    "keygen": lambda rng: [rng.choice(PATHS)],
}
