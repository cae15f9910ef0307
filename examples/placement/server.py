"""A server that answers placement requests with a map.

    server.py SOCKET [--agent bandit|random|weight=TIER,activation=TIER] [--seed N]

It listens on a Unix socket. Each request is one line of JSON, and so is each answer:

    {"begin": {"allocations": [{"kind": "weight", "name": "conv1.weight", "shape": [16, 3, 3, 3], "bytes": 1728}, ...],
               "tiers": [{"name": "dram", "bytes": 4194304}, {"name": "pm", "bytes": null}]}}
    {"map": {"weight:conv1.weight": "pm", ...}}                  the map for the first step

    {"seconds": 0.125}                                           how long the step took with that map
    {"map": {...}, "steps": 1}                                   the map for the next step

Each connection has an agent of its own, which ends with it. What is no request is answered with {"error": "why"}.
"""

import argparse
import json
import os
import socket
import socketserver
import sys

import agent

# No model's list of allocations is longer than this, in bytes.
LONGEST = 16 << 20


class Connection(socketserver.StreamRequestHandler):
    def handle(self):
        self.agent, self.steps = None, 0
        while True:
            line = self.rfile.readline(LONGEST)
            if not line.endswith(b"\n"):
                return
            try:
                answer = self.answer(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            try:
                self.wfile.write(json.dumps(answer).encode() + b"\n")
            except OSError:
                return

    def answer(self, request):
        if "begin" in request:
            allocations, tiers = request["begin"]["allocations"], request["begin"]["tiers"]
            check(allocations, tiers)
            self.agent, self.steps = agent.make(self.server.agent, self.server.seed), 0
            self.agent.begin(allocations, tiers)
            return {"map": self.agent.place()}
        if "seconds" in request:
            if self.agent is None:
                return {"error": "no 'begin' yet"}
            seconds = float(request["seconds"])
            if not 0 <= seconds < float("inf"):
                raise ValueError(f"a step of {seconds} seconds")
            self.agent.learn(seconds)
            self.steps += 1
            return {"map": self.agent.place(), "steps": self.steps}
        return {"error": "neither 'begin' nor 'seconds'"}


def check(allocations, tiers):
    """Raises ValueError for allocations or tiers that an agent cannot rely on."""
    for allocation in allocations:
        if allocation["kind"] not in ("weight", "activation") or not isinstance(allocation["name"], str):
            raise ValueError(f"no allocation: {allocation}")
        if not isinstance(allocation["bytes"], int) or allocation["bytes"] < 0:
            raise ValueError(f"no number of bytes: {allocation}")
    if not tiers or not all(isinstance(tier["name"], str) for tier in tiers):
        raise ValueError("no tiers")
    if not all(tier.get("bytes") is None or isinstance(tier["bytes"], int) for tier in tiers):
        raise ValueError("no number of bytes in a tier")


def remove_dead(path):
    """Removes the socket of a server that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path, agent="bandit", seed=0):
        self.agent, self.seed = agent, seed
        remove_dead(path)
        super().__init__(path, Connection)


def main():
    arguments = argparse.ArgumentParser(description="answers placement requests with a map")
    arguments.add_argument("socket")
    arguments.add_argument("--agent", default="bandit", help="bandit, random, or weight=TIER,activation=TIER")
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    try:
        agent.make(options.agent)
        server = Server(options.socket, options.agent, options.seed)
    except (ValueError, OSError) as error:
        sys.exit(f"server.py: {error}")
    print(f"listening on {options.socket}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        os.unlink(options.socket)


if __name__ == "__main__":
    main()
