import torch
from measuring import cost_of, tell
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

torch.set_num_threads(1)
rows = 1_000_000


def transitions(count):
    return TensorDict(
        {
            "observation": torch.randn(count, 4),
            "action": torch.randint(2, (count,)),
            "next": {
                "observation": torch.randn(count, 4),
                "reward": torch.rand(count, 1),
                "terminated": torch.rand(count, 1) < 0.1,
                "done": torch.rand(count, 1) < 0.1,
            },
        },
        [count],
    )


replay = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=256)
replay.extend(transitions(rows))
few = transitions(16)
adding = cost_of(lambda: replay.extend(few), number=200)
sampling = cost_of(replay.sample, number=200)
tell("torchrl", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
