"""Tensors through a queue, which shares their memory: so they are copied first."""

import time

from handing import ROUNDS, WARM_UP, cost_of, load, make_weights, renew
from measuring import settings, tell
from torch import multiprocessing


def receive(given, answers):
    own = make_weights(settings()["megabytes"])
    for number in range(WARM_UP + ROUNDS):
        answers.put(load(own, given.get(), number))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    given, answers = spawn.Queue(), spawn.Queue()
    process = spawn.Process(target=receive, args=(given, answers))
    process.start()
    weights, taken = make_weights(settings()["megabytes"]), []
    for number in range(WARM_UP + ROUNDS):
        renew(weights, number)
        began = time.monotonic()
        given.put({name: each.clone() for name, each in weights.items()})
        taken.append(answers.get() - began)
    process.join()
    tell("torch", **{"wall time": cost_of(taken)})
