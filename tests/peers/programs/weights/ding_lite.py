import time

from handing import ROUNDS, WARM_UP, cost_of, load, make_weights, renew
from measuring import settings, tell

from ding_lite import Parallel
from ding_lite.distributed import ModelServer, World


def main():
    world = World.current()
    everybody, server = world.group("node.*"), ModelServer(world, name="handed")
    weights, version, taken = make_weights(settings()["megabytes"]), None, []
    for number in range(WARM_UP + ROUNDS):
        if world.node_id == 0:
            renew(weights, number)
            everybody.barrier()
            began = time.monotonic()
            server.publish(weights)
            everybody.broadcast(began)
        else:
            everybody.barrier()
            model = server.wait(newer_than=version)
            done, version = load(weights, model.weights, number), model.version
            taken.append(done - everybody.broadcast(None))
    everybody.barrier()
    return taken


if __name__ == "__main__":
    _, taken = Parallel.runner(2)(main)
    tell("ding_lite", **{"wall time": cost_of(taken)})
