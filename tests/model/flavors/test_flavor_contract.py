"""Our flavors pass the contract that is asked of everybody's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import pandas
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import maitred
from maitred.testing.flavors import FlavorContract


class Doubler(maitred.Model):
    signature = maitred.Signature({"x": "float64[n, 2]", "who": "str[n]"}, {"y": "float64[n, 2]", "hello": "str[n]"})

    def predict(self, batch: dict[str, Any], context: maitred.Context) -> dict[str, Any]:
        return {"y": batch["x"] * 2, "hello": [f"hello {who}" for who in batch["who"]]}


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    return {"half": batch["x"] / 2}


halve.signature = maitred.Signature({"x": "float32[n]"}, {"half": "float32[n]"})  # type: ignore[attr-defined]


class TestPythonClass(FlavorContract):
    name = "python"

    def model(self) -> Any:
        return Doubler

    def example(self) -> Any:
        return {"x": [[1.0, 2.0], [3.0, 4.0], [-0.5, 1e300]], "who": ["ann", "bob", "zoë"]}


class TestPythonFunction(FlavorContract):
    name = "python"

    def model(self) -> Any:
        return halve

    def example(self) -> Any:
        return np.array([1, 2, 3], np.float32)


class TestOnnx(FlavorContract):
    name = "onnx"
    frameworks = ("onnxruntime",)

    def model(self) -> Any:
        value = onnx.helper.make_tensor_value_info
        nodes = [
            onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
            onnx.helper.make_node("Neg", ["y"], ["minus"]),
        ]
        weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
        float32 = onnx.TensorProto.FLOAT
        shape = ["batch", 2]
        graph = onnx.helper.make_graph(
            nodes, "g", [value("x", float32, shape)], [value("y", float32, shape), value("minus", float32, shape)],
            [weights],
        )  # fmt: skip
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    def example(self) -> Any:
        return np.array([[1, 2], [3, 4], [5, 6]], np.float32)


class TestSklearnMatrix(FlavorContract):
    name = "sklearn"
    frameworks = ("sklearn", "skops", "pandas")

    def model(self) -> Any:
        features, labels = load_iris(return_X_y=True)
        return make_pipeline(StandardScaler(), LogisticRegression()).fit(features, labels)

    def example(self) -> Any:
        return load_iris().data[::50]


class TestSklearnFrame(FlavorContract):
    name = "sklearn"
    frameworks = ("sklearn", "skops")

    def model(self) -> Any:
        features, labels = load_iris(return_X_y=True, as_frame=True)
        names = np.array(["setosa", "versicolor", "virginica"])[labels]
        return make_pipeline(StandardScaler(), LogisticRegression()).fit(features, names)

    def example(self) -> Any:
        features: pandas.DataFrame = load_iris(as_frame=True).data
        return features.iloc[::50]
