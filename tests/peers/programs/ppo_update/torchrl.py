"""Advantages once for each rollout, as all sides here; its own example does so each epoch."""

import math

import torch
from measuring import cost_of, settings, tell
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)
size, shape = settings(), (8, 128)


def network(outputs):
    return MLP(
        in_features=4,
        out_features=outputs,
        num_cells=[size["width"]] * 2,
        activation_class=torch.nn.Tanh,
    )


actor = ProbabilisticActor(
    TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
    in_keys=["logits"],
    distribution_class=torch.distributions.Categorical,
    return_log_prob=True,
)
critic = ValueOperator(network(1), in_keys=["observation"])
add_advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
loss_of = ClipPPOLoss(
    actor,
    critic,
    clip_epsilon=0.2,
    entropy_coeff=0.01,
    critic_coeff=0.5,
    loss_critic_type="l2",
    normalize_advantage=True,
)
adam = torch.optim.Adam(loss_of.parameters(), lr=2.5e-4, eps=1e-5)
buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(1_024), sampler=SamplerWithoutReplacement(), batch_size=size["batch"]
)
done = torch.rand(*shape, 1) < 0.05
rollout = TensorDict(
    {
        "observation": torch.randn(*shape, 4),
        "action": torch.randint(2, shape),
        actor.log_prob_keys[0]: torch.full(shape, math.log(0.5)),
        "next": {
            "observation": torch.randn(*shape, 4),
            "reward": torch.ones(*shape, 1),
            "terminated": done,
            "done": done.clone(),
        },
    },
    shape,
)


def learn():
    with torch.no_grad():
        data = add_advantages(rollout.clone(False))
    buffer.empty()
    buffer.extend(data.reshape(-1))
    count = 0
    for _ in range(4):
        for batch in buffer:
            found = loss_of(batch)
            loss = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 0.5)
            adam.step()
            count += 1
    assert count == updates


updates = 4 * 1_024 // size["batch"]
tell("torchrl", cost=cost_of(learn, number=1, repeats=5) / updates * 1e6)
