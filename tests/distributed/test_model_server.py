"""The model server: weights by name and version, fetched without a message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ding_lite.distributed import ModelServer, World
from ding_lite.distributed.model_server import Model
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import DQN, DQNConfig, EnvSpec
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.router import current_router
from ding_lite.testing import Cluster
from tests.nodes import delivered, found_at_the_end
from tests.programs.batches import SPEC, batch_of
from tests.threads import switching_often, together

Routers = tuple[NodeRouter, ...]
Pair = tuple[ModelServer, ModelServer]


@pytest.fixture
def routers() -> Iterator[Routers]:
    with Cluster(2) as cluster:
        yield cluster.routers


@pytest.fixture
def pair(routers: Routers) -> Pair:
    """Return a server that publishes and one that fetches."""
    first, second = routers
    return ModelServer(World(first)), ModelServer(World(second))


def publish(server: ModelServer, weights: dict[str, Tensor], *, half: bool = False) -> int:
    """Publish weights, and return their version once the other node has them."""
    version = server.publish(weights, half=half)
    delivered(server._router)  # type: ignore[arg-type]
    return version


def fetched(reader: ModelServer, *, newer_than: int | None = None) -> Model:
    model = reader.fetch(newer_than=newer_than)
    assert model is not None
    return model


def first_of(reader: ModelServer) -> Model:
    while (model := reader.fetch()) is None:
        pass
    return model


def tensor(model: Model, name: str = "w") -> Tensor:
    return torch.as_tensor(model.weights[name])


def test_published_weights_are_fetched_with_their_version(routers: Routers, pair: Pair) -> None:
    publisher, reader = pair
    assert reader.fetch() is None
    weights = {"w": torch.ones(3), "steps": torch.tensor([4])}
    assert publisher.publish(weights) == 1
    weights["w"].zero_()
    delivered(routers[0])
    model = fetched(reader)
    assert model.version == 1
    assert torch.equal(tensor(model), torch.ones(3))
    assert torch.equal(tensor(model, "steps"), torch.tensor([4]))


def test_a_published_network_brings_its_running_means(pair: Pair) -> None:
    def network(spec: EnvSpec) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    learner, collector = (DQN(SPEC, DQNConfig(seed=seed), network=network) for seed in (0, 1))
    learner.learn(batch_of(0, size=128))
    publish(pair[0], learner.weights())
    collector.load_weights(fetched(pair[1]).weights)
    torch.testing.assert_close(collector.weights(), learner.weights(), rtol=0, atol=0)
    assert collector.weights()["1.num_batches_tracked"] == 1


def test_fetch_returns_the_newest_version_unless_it_is_known(pair: Pair) -> None:
    publisher, reader = pair
    publish(publisher, {"w": torch.ones(3)})
    assert fetched(reader).version == 1
    assert reader.fetch(newer_than=1) is None
    publish(publisher, {"w": torch.ones(3)})
    assert publish(publisher, {"w": 3 * torch.ones(3)}) == 3
    assert fetched(reader, newer_than=1).version == 3
    assert publisher.fetch(newer_than=3) is None


def test_weights_may_arrive_at_any_moment_of_a_fetch(routers: Routers) -> None:
    with switching_often():
        for number in range(100):
            publisher, reader = (ModelServer(World(r), name=f"{number}") for r in routers)
            publish = partial(publisher.publish, {"w": torch.ones(1)})
            _, model = together(publish, partial(first_of, reader))
            assert model.version == 1


def test_asking_for_an_unchanged_version_sends_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, reader = pair
    publish(publisher, {"w": torch.ones(3)})
    reader.fetch()
    for name in ("ask", "call", "emit", "publish", "publish_ctx", "send"):
        monkeypatch.setattr(NodeRouter, name, None)
    assert reader.fetch(newer_than=1) is None


def test_two_servers_of_a_node_that_publish_under_one_name_are_refused() -> None:
    world = World(LocalRouter())
    former, later = (ModelServer(world, name="actor") for _ in range(2))
    former.publish({"w": torch.ones(3)})
    for _ in range(2):
        later.publish({"w": torch.ones(3)})  # as of a second task
    with pytest.raises(ConfigError, match=r"publishes `model/actor` too"):
        former.publish({"w": torch.ones(3)})


def test_half_precision_halves_the_bytes_of_long_tensors(pair: Pair) -> None:
    publisher, reader = pair
    publish(publisher, {"w": torch.full((3,), 1 / 3), "n": torch.tensor([2**40])}, half=True)
    w, n = (tensor(fetched(reader), name) for name in ("w", "n"))
    assert (w.dtype, n.dtype) == (torch.float16, torch.int64)
    assert torch.allclose(w.float(), torch.full((3,), 1 / 3), atol=1e-3)
    assert n.item() == 2**40


def test_numbers_too_large_for_half_precision_arrive_as_they_are(pair: Pair) -> None:
    publisher, reader = pair
    sent = {"running_var": torch.tensor([1e5, -1.0]), "w": torch.ones(2), "none": torch.ones(0)}
    publish(publisher, sent, half=True)
    assert torch.equal(tensor(fetched(reader), "running_var"), sent["running_var"])
    assert tensor(fetched(reader)).dtype is torch.float16


def test_a_fetched_half_precision_version_does_not_change_with_later_ones() -> None:
    def main() -> list[float] | None:
        server = ModelServer()
        sizes = (300_000, 300_000, 400_000)  # the last one takes other memory
        if current_router().node_id == 0:
            for version, size in enumerate(sizes):
                server.publish({"w": torch.full((size,), float(version))}, half=True)
                World.current().group("node.*").barrier()
            return None
        kept: list[Model | None] = []
        for _ in sizes:
            kept.append(server.wait(newer_than=len(kept)))
            World.current().group("node.*").barrier()
        return [float(tensor(model).max()) for model in kept if model]

    with Cluster(2) as cluster:
        assert cluster.run(main)[1] == [0.0, 1.0, 2.0]


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_weights_may_be_on_a_gpu(pair: Pair, half: bool) -> None:
    publisher, reader = pair
    publish(publisher, {"w": torch.full((3,), 0.5, device="cuda")}, half=half)
    assert tensor(fetched(reader)).float().tolist() == [0.5] * 3


@pytest.mark.parametrize("name", ["critic", "actor/version"])
def test_models_of_different_names_are_independent(routers: Routers, name: str) -> None:
    first, second = routers
    servers = [ModelServer(World(first), name=each) for each in (name, "actor", "none")]
    for value, server in enumerate(servers[:2]):
        publish(server, {"w": torch.full((3,), float(value))})
    readers = [ModelServer(World(second), name=each) for each in (name, "actor", "none")]
    assert [tensor(fetched(reader)).tolist() for reader in readers[:2]] == [[0.0] * 3, [1.0] * 3]
    assert readers[2].fetch() is None


def test_a_publisher_fetches_its_own_weights_as_published() -> None:
    def main() -> None:
        server = ModelServer()
        if current_router().node_id == 0:
            assert server.fetch() is None
            weights = {"small": torch.ones(3), "large": torch.ones(200_000)}
            server.publish(weights)
            for tensor in weights.values():
                tensor.zero_()
            model = fetched(server)
            assert (model.version, server.fetch(newer_than=1)) == (1, None)
            assert [tensor.sum() for tensor in model.weights.values()] == [3.0, 2e5]

    main()
    with Cluster(2) as cluster:
        cluster.run(main, timeout=15.0)


def test_a_publisher_that_was_restarted_is_followed() -> None:
    with Cluster(2) as cluster:
        first, second = cluster.routers
        reader = ModelServer(World(second))
        publish(ModelServer(World(first)), {"w": torch.ones(3)})
        assert tensor(fetched(reader, newer_than=0)).tolist() == [1.0] * 3
        assert reader.fetch(newer_than=1) is None
        again = cluster.restart(0)
        again.wait_ready(10.0)
        publish(ModelServer(World(again)), {"w": torch.zeros(3)})
        assert tensor(fetched(reader, newer_than=1)).tolist() == [0.0] * 3
        assert reader.fetch(newer_than=1) is None


def test_nodes_that_publish_in_turn_are_named_and_one_that_takes_over_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(3) as cluster:
        first, second, reader = (ModelServer(World(router)) for router in cluster.routers)
        for turn, publisher in enumerate((first, second, first, second, first)):
            assert not caplog.messages or turn > 2
            publish(publisher, {"w": torch.full((1,), turn)})
            assert tensor(fetched(reader)).tolist() == [turn]
    [warning] = caplog.messages
    assert warning.startswith("Nodes 0 and 1 publish `model/model` in turn, and the newest is")


def test_only_higher_versions_are_newer_also_for_another_server_of_the_node(
    routers: Routers, pair: Pair
) -> None:
    publisher, reader = pair
    for version in (1, 5):
        publisher.publish({"w": torch.ones(3)}, version=version)
    delivered(routers[0])
    for newer_than in (5, 8):
        assert publisher.fetch(newer_than=newer_than) is None
        assert reader.fetch(newer_than=newer_than) is None
    assert fetched(reader, newer_than=4).version == 5
    with pytest.raises(DeadlineExceeded, match="No version of `model/model` above 8 has come"):
        reader.wait(newer_than=8, timeout=0.0)


def test_a_wait_for_weights_ends_with_the_job() -> None:
    with Cluster(2) as cluster:
        server = ModelServer(World(cluster.routers[1]))
        assert found_at_the_end(cluster.routers[1], server.wait) is None


def test_wait_returns_the_next_version_or_times_out() -> None:
    is_waiting = threading.Event()

    def main() -> Any:
        server = ModelServer()
        if current_router().node_id == 0:
            assert is_waiting.wait(10.0)
            return server.publish({"w": torch.ones(3)})
        with pytest.raises(DeadlineExceeded, match="No version of `model/model`"):
            server.wait(timeout=0.01)
        is_waiting.set()
        model = server.wait(timeout=10.0)
        assert model is not None
        assert server.wait(newer_than=1, until=lambda: True) is None
        return model.version

    with Cluster(2) as cluster:
        assert cluster.run(main, timeout=15.0) == [1, 1]
