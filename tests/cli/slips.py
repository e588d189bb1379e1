"""Typed mistakes: what is typed, and what is said of it. Each ends with exit code 2.

`<...>` stand for what cannot be written down here: see `words_of`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.cli.calls import PROGRAM

TRAIN = "train dqn CartPole-v1 --max-env-steps 64 --set hidden=8, --set warmup=8"
EVOLVE = "evolve dqn CartPole-v1 --population 2 --max-env-steps 64 --set hidden=8,"
RUN = "run program:nothing"
TCP = f"{RUN} --nodes 2 --protocol tcp"

SPECIAL = {
    "<EMPTY>": "",
    "<NUL>": "a\0b",
    "<LONG>": "x" * 300,
    "<DEEP>": "/".join(["d"] * 3_000),
    "<NO-TEXT>": "\udcff",
    "<DIGITS>": "9" * 5_000,
    "<2^63>": str(2**63),
    "<2^64>": str(2**64),
}

NUMBERS = [
    *(
        (f"{TRAIN} --seed {word}", "a whole number from 0 on")
        for word in ("-1", "1.5", "0x10", "٣", "1__000", "1e-3", "<EMPTY>", "inf")
    ),
    *((f"{TRAIN} --seed {word}", "9223372036854775807") for word in ("<2^63>", "<2^64>")),
    (f"{TRAIN} --seed <DIGITS>", "(5000 characters)"),
    (f"{TRAIN} --num-envs 0", "a whole number from 1 on"),
    (f"{TRAIN} --num-envs <2^64>", "at most 9223372036854775807"),
    (f"{TRAIN} --max-env-steps nan", "a whole number from 1 on"),
    (f"{TRAIN} --max-env-steps <2^64>", "at most 9223372036854775807"),
    *((f"{TRAIN} --target {word}", "a number was") for word in ("nan", "inf", "1e400", "high")),
    (f"{EVOLVE} --population <2^63>", "at most 9223372036854775807"),
    ("watch run --episodes -3", "a whole number from 1 on"),
    ("watch run --seed <2^64>", "at most 9223372036854775807"),
    ("report run --live --port 65536", "from 0 on was expected, and at most 65535"),
    (f"{RUN} --nodes 0", "a whole number from 1 on"),
    (f"{RUN} --nodes <2^64>", "at most 9223372036854775807"),
    (f"{RUN} --auto-recover --max-retries <2^63>", "at most 9223372036854775807"),
    *((f"{RUN} --startup-timeout {word}", "seconds") for word in ("0", "nan", "inf", "1e300")),
    *((f"top --every {word}", "seconds") for word in ("-1", "1e400", "<EMPTY>")),
    *(
        (f"{TCP} --ports {word}", "a port from")
        for word in ("0", "65536", "7000,", "²", "<2^64>", "<DIGITS>")
    ),
    *((f"{TRAIN} --set lr={word}", "64 bits") for word in ("nan", "inf", "1e400", "<2^64>")),
    (f"{TRAIN} --set lr=<DIGITS>", "64 bits"),
    (f"{TRAIN} --set hidden=8,<2^64>", "64 bits"),
    (f"{TRAIN} --set lr=0", "`lr` is 0.0; it must be above 0"),
    (f"{TRAIN} --set hidden=0,", "`hidden` is 0"),
    (f"{TRAIN} --set hidden=8,-1", "`hidden` is -1"),
    (f"{TRAIN} --set batch_size=1e30", "`batch_size` is 1e+30; `int` was expected"),
    (f"{TRAIN} --set update_ratio=1e300", "`update_ratio` is 1e+300; it must lie between"),
    (f"{TRAIN} --set update_ratio=1e-300", "`update_ratio` is 1e-300; it must lie between"),
    (f"{EVOLVE} --search batch_size=1:<2^64>", "64 bits"),
    (f"{EVOLVE} --search lr=1e-3:inf", "64 bits"),
    (f"{EVOLVE} --search lr=1:2 --search lr=2:3", "`--search lr` was given 2 times"),
    (f"{EVOLVE} --search lr=2:1", "search of `lr` is refused: `low` is 2 and `high` 1; they must"),
    (f"{EVOLVE} --search lr=0:1:log", "The search of `lr` is refused: `low` is 0; it must be abo"),
    (f"{EVOLVE} --search batch_size=8:16.5", "command line with two whole numbers: batch_size=8"),
    (f"{EVOLVE} --search double=1:2", "`choice(True, False)`, on the command line 'double=true|f"),
    (f"{EVOLVE} --search hidden=8:16", "mutation changes it: `mutate_architecture`, or in a prog"),
]

TOO_LARGE = [
    *((f"{TRAIN} --num-envs {word}", "`num_envs`") for word in ("1000000000", "<MOST>")),
    (f"{TRAIN} --set hidden=1000000000,1000000000", "Lower `hidden`"),
    (f"{TRAIN} --set hidden=<MOST>,<MOST>", "Lower `hidden`"),
    (f"{TRAIN} --set capacity=1000000000000", "`capacity` 1,000,000,000,000 needs"),
    (f"{TRAIN} --set frame_stack=1000000000", "`frame_stack` 1,000,000,000 needs"),
    (f"{TRAIN} --set n_step=1000000000", "`n_step` 1,000,000,000 needs"),
    (f"{TRAIN} --set batch_size=1000000000", "`batch_size` is 1,000,000,000, the capacity"),
    ("train ppo CartPole-v1 --set unroll=1000000000", "`unroll` 1,000,000,000 needs"),
    ("train sac Pendulum-v1 --set hidden=1000000000,8", "Lower `hidden`"),
    ("train a2c CartPole-v1 --set hidden=1000000000,8", "Lower `hidden`"),
    (f"{EVOLVE} --population 10000000", "`population` 10,000,000 needs"),
    (f"{EVOLVE} --population <MOST>", "`population` 9,223,372,036,854,775,807 needs"),
    (f"{EVOLVE} --set turn=1000000000", "`turn` 1,000,000,000 needs"),
    (f"{EVOLVE} --set eval_episodes=1000000000", "`eval_episodes` 1,000,000,000 needs"),
    (f"{RUN} --nodes 1000000000", "`n_parallel_workers` 1,000,000,000 needs"),
    (f"{RUN} --nodes 10000 --topology mesh", "`n_parallel_workers` 10,000 needs"),
]
SPECIAL["<MOST>"] = str(2**63 - 1)

_NO_DIRECTORY = ("a-file", "a-file/x", "/dev/full", "pipe", "loop", "/proc/self/x", "dangling/x")
_SOME = ("a-file", "pipe", "/proc/x", "dangling")
_NO_PATH = ("<EMPTY>", "<NUL>", "<LONG>", "<DEEP>", "<NO-TEXT>")
PATHS = [
    *((f"{TRAIN} --out {word}", "cannot be made: ") for word in _NO_DIRECTORY),
    *((f"{EVOLVE} --out {word}", "cannot be made: ") for word in ("a-file", "/proc/x")),
    *((f"{TRAIN} --resume --out {word}", "director") for word in _SOME),
    *((f"watch {word}", "checkpoint in") for word in _SOME),
    *((f"watch run --record {word}", "cannot be made") for word in _SOME),
    *(
        (f"plot run --metric wall_s --out {word}/x.png", "The picture cannot be written: ")
        for word in ("a-file", "/proc/x", "dangling")
    ),
    ("plot run --metric wall_s --out pictures.png", "pictures.png is a directory"),
    *((f"keygen {word}", "") for word in (".", "a-file", "a-file/x", "/proc/x", "loop/x", "sub")),
    *((f"{TCP} --key-file {word}", "") for word in ("a-file", "/etc/passwd", "pipe", ".")),
    *(
        (f"{start} {word}", "a path ")
        for word in _NO_PATH
        for start in (f"{TRAIN} --out", f"{TCP} --key-file")
    ),
    *(
        (f"{start} <NUL>", "a path ")
        for start in ("watch", "watch run --record", "plot", "plot run --out", "keygen")
    ),
    (f"{TRAIN} --out run", "run holds another run already. Go on with it (`--resume`, in Python"),
]

BROKEN_RUNS = [
    (f"{TRAIN} --resume --out other-run", "was begun in another way: `"),
    ("train sac Pendulum-v1 --resume --out run", "are those of `dqn`, and `sac` has others"),
    *(
        (f"{start} {run}-config", fault)
        for run in ("half", "list", "text", "pipe")
        for start, fault in (
            ("plot", f"{run}-config/config.json cannot be read: "),
            ("train dqn CartPole-v1 --resume --out", "its config.json is missing or damaged"),
        )
    ),
    *(
        (f"{start} broken-metrics", "metrics.jsonl is damaged: line 1 of 2 is no row of metrics")
        for start in ("plot", "train dqn CartPole-v1 --resume --out")
    ),
    *(
        (f"{start} half-manifest", "half-manifest/checkpoint is damaged")
        for start in ("watch", "train dqn CartPole-v1 --resume --out")
    ),
    ("plot empty", "There is no run in empty"),
    ("report empty", "There is no run in empty"),
    ("runs empty", "There is no run in empty"),
    ("watch empty", "There is no run or checkpoint in empty. `ding-lite runs` lists"),
    ("watch .", "There is no checkpoint in /"),
    ("watch nowhere", "no run or checkpoint in nowhere. `ding-lite runs` lists"),
]

NAMES = [
    *(
        (f"train {word} CartPole-v1", "There is no policy")
        for word in ("<EMPTY>", "<NUL>", "<LONG>", "<NO-TEXT>", "dqn,sac", "../dqn")
    ),
    *(
        (f"train dqn {word}", "")
        for word in ("CartPole", "CartPole-v99", "CartPole-v", "a:b", "no.such:X-v1", "<EMPTY>")
    ),
    *(
        (f"train dqn {word}", "")
        for word in ("/", "<NUL>", "<LONG>", "<NO-TEXT>", "-v1", "os:x-v0")
    ),
    ("train dnq CartPole-v1", "There is no policy 'dnq' to train. Did you mean \"dqn\"?"),
    ("train dqn CartPol-v1", 'Did you mean "CartPole-v1"?'),
    ("train dqn Pendulum-v1", "DQN is for Discrete actions, but Pendulum-v1 has"),
    (f"{TRAIN} --set lrr=1", 'Unknown setting "lrr". Did you mean "lr"?'),
    (
        "train sac CartPole-v1",
        "SAC is for continuous actions, but CartPole-v1 has the action space Discrete(2). Take DQN",
    ),
    *((f"{TRAIN} --set {word}=1", "") for word in ("<EMPTY>", "<NUL>", "l.r", "__init__")),
    *(
        (f"{TRAIN} --set {word}", "expected is a name, `=` and a value, such as lr=3e-4")
        for word in ("lr", "=1", "lr=", "<EMPTY>")
    ),
    (f"{TRAIN} --set seed=3", '"seed" is an option and no setting'),
    (f"{TRAIN} --set loss=hubert", "`loss` is 'hubert'"),
    (f"{EVOLVE} --search lrr=1:2", 'Unknown key "lrr". Did you mean'),
    (f"{EVOLVE} --search lr=1e-3:1e-2 --set lr=1", "`lr` is searched, and was given"),
    ("plot run --metric wal_s", '`wal_s` is missing in run. Did you mean "wall_s"? Metrics of'),
    ("plot run --out curves.gif", "curves.gif ends in '.gif'. Choose one of: .png, .svg"),
    ("runs --sort bset", "found 'bset'; expected is one of: run, policy,"),
    ("plot nowhere", "no run in nowhere: a directory with a config.json or a metrics.jsonl was"),
    ("export run --out policy.pth", "does not say the format"),
    ("export run --out p.onnx --format torch", "the format is 'torch'. Let it end in .pt2"),
    ("export elsewhere", "checkpoint in elsewhere"),
    ("top no-such-job", "There is no job 'no-such-job'"),
    *(
        (f"run {word}", f"The program is '{word}'; expected is a module or a file, a colon, and a")
        for word in ("program", ":main", "program:", "program:a.b")
    ),
    ("run program:mainn", 'function `mainn`. Did you mean "main"? Its functions are: main,'),
    ("run program:__name__", "program has a str instead of a function `__name__`."),
    ("run prorgam:main", "There is no module `prorgam` (looked for in"),
    ("run program.sub:main", "There is no module `program.sub`"),
    ("run my-train:main", "'my-train' is no name of a module"),
    ("run no/such.py:main", "There is no file 'no/such.py' (looked for in"),
    ("run sub/random.py:main", "sub/random.py has the name of another module, `random` ("),
    ("run ./a.b.py:main", "a name without dots that ends in .py. Rename it."),
    ("run program:inner --nodes 2", "is a lambda, and a node, which is another process, could"),
    ("run program:main --roles node", "'node' cannot be a role"),
    (f"{RUN} --nodes 2 --topology 0-9", "`topology` has the entry (0, 9); each must be"),
    (f"{TCP} --key-file none.key", "The key file none.key cannot be read"),
    ("keygen no/such/folder.key", "The key file no/such/folder.key cannot be written: No such"),
    *(
        (f"run {word}:main", "")
        for word in ("<EMPTY>", "<NUL>", "<LONG>", "<NO-TEXT>", "..x", "a..b")
    ),
    *(
        (f"run {word}.py:main", "There is no file")
        for word in ("none", "<NUL>", "<LONG>", "<DEEP>")
    ),
    ("run no_main:main", "has no function `main`"),
    ("run program:PROGRAM", "has no function `PROGRAM`"),
    ("run program:take", "takes (first, second='usual'): missing a required argument"),
    (f"{RUN} --labels a,,b", "names, separated by commas"),
    (f"{RUN} --labels <NUL>", "is no label"),
    *(
        (f"{RUN} --roles {word}", "expected is a role")
        for word in ("<EMPTY>", ",", "a,", "a,,b", "+a", "a+", "a*", "a*0", "a*-1", "a*x", "*2")
    ),
    *((f"{RUN} --roles {word}", "a count from 1 to 999") for word in ("a*1000", "a*2*2")),
    (f"{RUN} --topology ring", "expected is one of: star"),
    (f"{RUN} --topology sar", 'Did you mean "star"?'),
    (f"{RUN} --topology tree:0", 'Did you mean "tree"?'),
    *(
        (f"{RUN} --topology {word}", "is no such pair")
        for word in ("0-0", "0-1,2", "0-1,", "0-1-2", "0-9999999", "<EMPTY>")
    ),
    *(
        (f"{EVOLVE} --search {word}", "LOW:HIGH")
        for word in ("lr", "lr=", "lr=1e-4", "lr=1:2:3", "lr=a:b", "=1:2", "lr=1e-4:log")
    ),
    (f"{EVOLVE} --search loss=mse|", "several values with `|`"),
    (f"{TCP} --address no.such.host.invalid", ""),
    (f"{TCP} --address <NUL>", ""),
    ("run --protocol udp program:main", "expected is one of: ipc, tcp"),
]

COMBINATIONS = [
    ("", "no command was given. Expected is one of: train, evolve, plot,"),
    ("<EMPTY>", "there is no command"),
    ("trainn dqn CartPole-v1", 'Did you mean "train"? Expected is'),
    ("--hlep", "ding-lite: there is no option '--hlep'. Did you mean \"--help\"?"),
    ("run", "ding-lite run: the following arguments are required: PROGRAM."),
    ("keygen", "ding-lite keygen: the following arguments are required: FILE."),
    (f"{RUN} --node 3", "there is no option '--node'. Did you mean \"--nodes\"?"),
    (f"{TRAIN} --lr 1", "no option '--lr'. Settings of the policy are given by `--set lr=VALUE`"),
    (f"{TRAIN} --n-steps 9", "Settings of the policy are given by `--set n_steps=VALUE`"),
    (f"{TRAIN} --target-kl 1", "Settings of the policy are given by `--set target_kl=VALUE`"),
    (f"{TRAIN} --num-env 3", "no option '--num-env'. Did you mean \"--num-envs\"?\nFor example"),
    (f"{TRAIN} --wrapper a.py:b", "`wrappers` is given otherwise: wrappers = ['tasks.py:scaled']"),
    (f"{TRAIN} --network a.py:b", "`network` is given otherwise: train(..., network=...) in Pyth"),
    (f"{TRAIN} --population 3", "--population of `ding-lite evolve`, evolve(..., population=...)"),
    (f"{EVOLVE} --compile torch", "given otherwise: --compile of `ding-lite train`, train(..., c"),
    (f"{EVOLVE} --set compile=torch", "is an option and no setting: --compile of `ding-lite tra"),
    (f"{TRAIN} --total-timesteps 9", "'--total-timesteps'. Did you mean \"--max-env-steps\"?"),
    (f"{RUN} --nodes", "argument --nodes: expected one argument."),
    (f"{RUN} c", "found 'c', where nothing more was expected. What is meant for the program"),
    ("runs a b", "found 'b', where nothing more was expected.\nFor example: "),
    ("top a b", "ding-lite top: found 'b', where nothing more was expected."),
    ("train dqn", "the following arguments are required: ENV"),
    ("train dqn CartPole-v1 extra", "found 'extra', where nothing more was expected"),
    ("train dqn CartPole-v1 --set lr=1e-3 gamma=0.9", "`--set gamma=0.9`"),
    (f"{TRAIN} --resume", "`resume` goes on with the run in `out`"),
    (f"{TRAIN} --out", "expected one argument"),
    (f"{TRAIN} --smoke=3", "ignored explicit argument"),
    ("env -- x", "only `ding-lite run` passes words on"),
    (f"{RUN} --nodes 3 --roles a,b", "--nodes is 3, and --roles has entries for 2"),
    (f"{RUN} --nodes 2 --ports 7000", "but the protocol is `ipc`"),
    (f"{RUN} --key-file nofile", "but the protocol is `ipc`"),
    (f"{RUN} --nodes 2 --address 127.0.0.1", "but the protocol is `ipc`"),
    (f"{TCP} --ports 7000,7000", "need as many different ports"),
    (f"{TCP} --ports 7000,7001,7002", "need as many different ports"),
    (f"{TCP} --ports 65535", "`ports` is 65536; it must lie between 1 and 65535"),
    (f"{TCP} --address 0.0.0.0", "no key is given"),
    (f"{RUN} --max-retries 2", "without --auto-recover"),
    (f"{TRAIN} --report tell", "`--report` is 'tell'; a function was expected, named with"),
    ("report run --port 8000", "nothing is served without --live"),
]


def words_of(line: str) -> list[str]:
    words = line.split()
    for sign, text in SPECIAL.items():
        words = [word.replace(sign, text) for word in words]
    return words


def make_folder(folder: Path, run: Path) -> None:
    """Make what the mistakes are about: files where directories should be, and broken runs.

    Args:
        folder: Where the lines are typed.
        run: A finished run of `TRAIN`, which is copied.
    """
    (folder / "program.py").write_text(PROGRAM)
    (folder / "no_main.py").write_text("x = 3\n")
    (folder / "a.b.py").write_text(PROGRAM)
    (folder / "a-file").write_text("hello\n")
    (folder / "dangling").symlink_to("nowhere-at-all")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    for name in ("sub", "empty", "pictures.png"):
        (folder / name).mkdir()
    (folder / "sub" / "random.py").write_text(PROGRAM)
    configs = {"half": '{"example": "tra', "list": "[]", "text": '{"options": "x"}'}
    runs = ["run", "other-run", "no-config", "pipe-config", "broken-metrics", "half-manifest"]
    for name in [*runs, *(f"{kind}-config" for kind in configs)]:
        shutil.copytree(run, folder / name)
    for kind, text in configs.items():
        (folder / f"{kind}-config" / "config.json").write_text(text)
    for name in ("no-config", "pipe-config"):
        (folder / name / "config.json").unlink()
    os.mkfifo(folder / "pipe-config" / "config.json")
    config = folder / "other-run" / "config.json"
    described = json.loads(config.read_text())
    described["config"]["hidden"] = [16]
    config.write_text(json.dumps(described))
    (folder / "broken-metrics" / "metrics.jsonl").write_text('{"env_st\n{"env_step": 8}\n')
    manifest = folder / "half-manifest" / "checkpoint" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:40])
