"""The training job's side of the server: asks for a map, and goes on without one when there is no answer."""

import json
import socket
import sys
import time

# No map is longer than this, in bytes.
LONGEST = 16 << 20


def say(text):
    print(text, file=sys.stderr, flush=True)


class Advisor:
    """Asks the server at `path` for maps.

    If the server is gone, or does not answer within `patience` seconds, the map is empty, so that the defaults hold.
    That is said once, and the server is asked again after `retry` steps. So a job never waits longer than `patience`
    for its adviser, and never fails with it.
    """

    def __init__(self, path, patience=1.0, retry=50, say=say):
        self.path, self.patience, self.retry, self.say = path, patience, retry, say
        self.socket = None
        self.rest = 0
        self.silent = False
        self.begun = None

    def begin(self, allocations, tiers):
        """The map for the first step."""
        self.begun = {"begin": {"allocations": allocations, "tiers": tiers}}
        return self._ask(self.begun)

    def step(self, seconds):
        """The map for the next step, after one that took `seconds`."""
        if self.socket is None:
            # A server that comes back knows nothing.
            self.rest -= 1
            return self._ask(self.begun) if self.rest <= 0 else {}
        return self._ask({"seconds": seconds})

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _ask(self, request):
        try:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        except (OSError, ValueError, RecursionError) as error:
            self.close()
            self.rest = self.retry
            if not self.silent:
                self.say(f"placement: no map from {self.path} ({error}): defaults")
            self.silent = True
            return {}
        if self.silent:
            self.say(f"placement: {self.path} answers")
        self.silent = False
        return answer

    def _exchange(self, request):
        until = time.monotonic() + self.patience
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(self.patience)
            self.socket.connect(self.path)
        self.socket.settimeout(self.patience)
        self.socket.sendall(request)
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self.socket.settimeout(left)
            part = self.socket.recv(1 << 16)
            if not part:
                raise OSError("it has hung up")
            line += part
            if len(line) > LONGEST:
                raise ValueError("the answer does not end")
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("map"), dict):
            raise ValueError(answer.get("error", "no map") if isinstance(answer, dict) else "no map")
        return answer["map"]
