"""The servers under test: where each is installed, how it is started, and what it speaks."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENVS = Path(os.environ.get("BENCH_VENVS", "/tmp/peers"))
MODELS = ("overhead", "slow", "curve", "minilm")


@dataclass(frozen=True)
class Peer:
    """One server. `venv` is its environment's name under `VENVS`; None: the Python that runs the harness."""

    title: str
    venv: str | None
    path: str
    body: str
    """A kind of `prepared.KINDS`."""
    models: tuple[str, ...] = MODELS
    grpc: bool = False
    """Speaks the Open Inference Protocol over gRPC."""
    grpc_offset: int = 1
    """Where: so many ports above HTTP's; 0 for one that speaks both on one port."""
    settle_seconds: float = 0.0
    """How long it goes on starting after its first answer."""
    every_run: tuple[str, ...] = MODELS
    """Models with which it is measured in every run; with the others in the first one."""
    own_folder: bool = True
    """Whether its temporary files can lie in a folder of this run: the names of sockets may not be long."""
    package: str = ""
    """Whose version is told."""
    program: str = ""
    """What must be installed beside the environment."""
    command: str = ""
    """In place of the file under `servers/`; `{model}` and `{port}` are filled in."""

    def python(self) -> str:
        return sys.executable if self.venv is None else str(VENVS / self.venv / "bin" / "python")

    def missing(self) -> str:
        """Why it cannot be started here; empty if it can."""
        if self.program and shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        if not Path(self.python()).exists():
            return f"not installed (bench/peers/setup.sh {self.venv})"
        return ""


V2 = "/v2/models/{model}/infer"
PEERS = {
    "maitred": Peer("maitred", None, V2, "v2"),
    "nginx": Peer("nginx, a constant", None, "/predict", "native", ("overhead",), program="nginx"),
    "mosec": Peer("mosec", "mosec", "/inference", "native", package="mosec"),
    "triton": Peer("Triton", "triton", V2, "v2", grpc=True, package="nvidia-pytriton"),
    "fastapi": Peer("FastAPI", "fastapi", "/predict", "native", package="fastapi"),
    "kserve": Peer("KServe", "kserve", V2, "v2", grpc=True, package="kserve"),
    "mlserver": Peer("MLServer", "mlserver", V2, "v2", grpc=True, package="mlserver"),
    "litserve": Peer("LitServe", "litserve", "/predict", "native", package="litserve"),
    "bentoml": Peer("BentoML", "bentoml", "/predict", "bento", package="bentoml"),
    "ray": Peer(
        "Ray Serve", "ray", "/", "native", settle_seconds=5.0, every_run=("overhead",), own_folder=False, package="ray"
    ),
    # not in the table unless they are named
    "pytriton": Peer("pytriton", "triton", V2, "v2", grpc=True, package="nvidia-pytriton"),
    "torchserve": Peer("TorchServe", "torchserve", "/predictions/{model}", "native", program="java"),
}
DEFAULT = "maitred nginx mosec triton fastapi kserve mlserver litserve bentoml ray".split()


def named(name: str) -> Peer:
    """The peer of a name, which may carry variants: `mosec:nobatch`. Raises KeyError."""
    return PEERS[name.partition(":")[0]]
