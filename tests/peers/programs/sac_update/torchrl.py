"""Its example's update: one Adam steps on the sum of the three losses."""

import torch
from measuring import cost_of, settings, tell
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

torch.set_num_threads(1)
size, rows = settings(), 20_000


def network(inputs, outputs):
    return MLP(
        in_features=inputs,
        out_features=outputs,
        num_cells=[size["width"]] * 2,
        activation_class=nn.ReLU,
    )


actor = ProbabilisticActor(
    TensorDictModule(
        nn.Sequential(network(3, 2), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    ),
    in_keys=["loc", "scale"],
    spec=Bounded(-2.0, 2.0, (1,)),
    distribution_class=TanhNormal,
    distribution_kwargs={"low": -2.0, "high": 2.0},
    return_log_prob=True,
)
critic = ValueOperator(network(4, 1), in_keys=["observation", "action"])
loss_of = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2", target_entropy=-1.0)
loss_of.make_value_estimator(gamma=0.99)
mover = SoftUpdate(loss_of, eps=0.995)
adam = torch.optim.Adam(loss_of.parameters(), lr=3e-4)
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=size["batch"])
done = torch.rand(rows, 1) < 0.1
replay.extend(
    TensorDict(
        {
            "observation": torch.randn(rows, 3),
            "action": 4.0 * torch.rand(rows, 1) - 2.0,
            "next": {
                "observation": torch.randn(rows, 3),
                "reward": -torch.rand(rows, 1),
                "terminated": done,
                "done": done.clone(),
            },
        },
        [rows],
    )
)


def learn():
    found = loss_of(replay.sample())
    (found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]).backward()
    adam.step()
    adam.zero_grad()
    mover.step()


tell("torchrl", cost=cost_of(learn, number=20, repeats=5) * 1e6)
