"""A dict of arrays, pickled and sent over a socket: what a program without a library does."""

import multiprocessing
import pickle
import time

import zmq
from handing import ROUNDS, WARM_UP, cost_of, load, make_weights, renew
from measuring import settings, tell


def receive(address):
    socket = zmq.Context.instance().socket(zmq.REP)
    socket.connect(address)
    own = make_weights(settings()["megabytes"])
    for number in range(WARM_UP + ROUNDS):
        socket.send_pyobj(load(own, pickle.loads(socket.recv()), number))


if __name__ == "__main__":
    socket = zmq.Context.instance().socket(zmq.REQ)
    address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    process = multiprocessing.get_context("spawn").Process(target=receive, args=(address,))
    process.start()
    weights, taken = make_weights(settings()["megabytes"]), []
    for number in range(WARM_UP + ROUNDS):
        renew(weights, number)
        began = time.monotonic()
        arrays = {name: each.numpy() for name, each in weights.items()}
        socket.send(pickle.dumps(arrays, protocol=5), copy=False)
        taken.append(socket.recv_pyobj() - began)
    process.join()
    tell("pyzmq", **{"wall time": cost_of(taken)})
