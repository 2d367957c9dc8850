"""The threads of the numeric libraries in each copy follow from the processors that the server may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest
from house import standing
from onnx import TensorProto

from loops import run
from maitred import assemble
from maitred.model.flavors.onnx import session as onnx_session
from maitred.settings import Address, ModelSettings, ReplicaSettings, ServerSettings

TELLER = """
import os
import maitred

class Teller(maitred.Model):
    signature = maitred.Signature({"name": "str[n]"}, {"value": "str[n]"})

    def predict(self, batch):
        return {"value": [os.environ.get(name, "") for name in batch["name"]]}
"""


def server(home: Path, source: Path, **replicas: Any) -> ServerSettings:
    free = Address("127.0.0.1", 0)
    model = ModelSettings(name="m", source=str(source), replicas=ReplicaSettings(**replicas))
    return ServerSettings(listen=free, admin_listen=free, home=home, models={"m": model})


@pytest.mark.parametrize(("replicas", "threads"), [({"max": 2}, "2"), ({"threads": 3}, "3")])
def test_processes_are_told_by_their_environment(
    replicas: Any, threads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "processors", lambda: 5)
    (tmp_path / "teller.py").write_text(TELLER)
    names = ["OMP_NUM_THREADS", "MAITRED_THREADS", "OPENBLAS_NUM_THREADS"]

    async def play() -> None:
        async with standing(server(tmp_path, tmp_path / "teller.py", **replicas)) as house:
            body = {"inputs": [{"name": "name", "datatype": "BYTES", "shape": [3], "data": names}]}
            reply = await house.caller().ask("POST", "/v2/models/m/infer", body)
            assert reply.json()["outputs"][0]["data"] == [threads] * 3

    run(play())


def test_a_model_in_the_servers_own_process_is_told_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "processors", lambda: 5)
    told: list[Any] = []
    monkeypatch.setattr(onnx_session, "threads_of", lambda options: told.append(options) or 1)
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "g",
        [value("x", TensorProto.FLOAT, ["n"])], [value("y", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", 17)]
    (tmp_path / "m.onnx").write_bytes(
        onnx.helper.make_model(made, opset_imports=opset, ir_version=8).SerializeToString()
    )

    async def play() -> None:
        async with standing(server(tmp_path, tmp_path / "m.onnx", kind="thread")):
            pass

    run(play())
    assert told == [{"threads": 4}]
