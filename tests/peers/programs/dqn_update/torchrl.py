import torch
from measuring import cost_of, settings, tell
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)
size, rows = settings(), 20_000
net = MLP(
    in_features=4, out_features=2, num_cells=[size["width"]] * 2, activation_class=torch.nn.ReLU
)
actor = QValueActor(net, in_keys=["observation"], action_space="categorical")
loss_of = DQNLoss(
    actor, loss_function="smooth_l1", delay_value=True, double_dqn=True, action_space="categorical"
)
loss_of.make_value_estimator(gamma=0.99)
mover = SoftUpdate(loss_of, eps=0.995)
adam = torch.optim.Adam(loss_of.parameters(), lr=1e-3)
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=size["batch"])
done = torch.rand(rows, 1) < 0.1
replay.extend(
    TensorDict(
        {
            "observation": torch.randn(rows, 4),
            "action": torch.randint(2, (rows,)),
            "next": {
                "observation": torch.randn(rows, 4),
                "reward": torch.rand(rows, 1),
                "terminated": done,
                "done": done.clone(),
            },
        },
        [rows],
    )
)


def learn():
    loss = loss_of(replay.sample())["loss"]
    loss.backward()
    adam.step()
    adam.zero_grad()
    mover.step()
    return loss.item()


tell("torchrl", cost=cost_of(learn, number=100) * 1e6)
