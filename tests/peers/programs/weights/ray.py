"""Arrays by `ray.put`, as RLlib sends weights, and a call of an actor that takes them."""

import time

import ray
from handing import ROUNDS, WARM_UP, cost_of, load, make_weights, renew
from measuring import settings, tell


@ray.remote
class Receiver:
    def __init__(self, megabytes):
        self.own = make_weights(megabytes)

    def load(self, given, number):
        return load(self.own, given, number)


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
size = settings()["megabytes"]
receiver, weights, taken = Receiver.remote(size), make_weights(size), []
for number in range(WARM_UP + ROUNDS):
    renew(weights, number)
    began = time.monotonic()
    given = ray.put({name: each.numpy() for name, each in weights.items()})
    taken.append(ray.get(receiver.load.remote(given, number)) - began)
ray.shutdown()
tell("ray", **{"wall time": cost_of(taken)})
