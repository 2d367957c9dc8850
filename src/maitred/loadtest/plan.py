"""What to ask and at what pace: the records that a run is made of, and that travel to worker processes."""

from __future__ import annotations

from typing import Literal

import msgspec

Arrivals = Literal["poisson", "constant"]


class Tls(msgspec.Struct, frozen=True):
    """How to speak TLS."""

    server_name: str
    verify: bool


class Target(msgspec.Struct, frozen=True):
    """Whom to ask."""

    host: str
    """An address, looked up once, so that no connection waits for a name."""
    port: int
    tls: Tls | None = None


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """What stays the same in all steps of a run."""

    target: Target
    requests: list[bytes]
    """Whole requests, heads and bodies, sent in turn and again from the front."""
    timeout_seconds: float
    """How long a caller waits, from the moment at which its request was due."""
    expected: list[bytes] = []
    """Answers to the requests in turn; one stands for all."""
    same: bool = False
    tolerance: float = 0.0
    seed: int = 0

    def share(self, worker: int, workers: int) -> Plan:
        """The part of one of `workers` processes: every so many-th request, or all where there are too few."""
        if workers == 1 or len(self.requests) < workers:
            return msgspec.structs.replace(self, seed=self.seed + worker)
        expected = self.expected if len(self.expected) < 2 else self.expected[worker::workers]
        requests = self.requests[worker::workers]
        return msgspec.structs.replace(self, requests=requests, expected=expected, seed=self.seed + worker)


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One pace, kept for a while."""

    connections: int
    """Closed loop: how many ask all the time. Open loop: how many may be open at most."""
    seconds: float
    """Of what is counted; ignored where `requests` are given."""
    warmup_seconds: float
    rate: float | None = None
    """Requests a second of an open loop; None for a closed one."""
    arrivals: Arrivals = "poisson"
    requests: int | None = None
    """How many are counted, instead of `seconds`."""
    first: int = 0
    stride: int = 1
    """With constant arrivals: which of the moments are this worker's."""

    def share(self, worker: int, workers: int) -> Step:
        """The part of one of `workers` processes."""
        if workers == 1:
            return self
        requests = self.requests
        return msgspec.structs.replace(
            self,
            connections=_part(self.connections, worker, workers),
            requests=None if requests is None else _part(requests, worker, workers),
            rate=None if self.rate is None else (self.rate if self.arrivals == "constant" else self.rate / workers),
            first=worker,
            stride=workers,
        )


def _part(whole: int, worker: int, workers: int) -> int:
    return whole // workers + (worker < whole % workers)
