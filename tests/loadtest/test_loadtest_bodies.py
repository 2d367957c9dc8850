"""Bodies made up from metadata: what the signature says holds for each, and no two are alike."""

from __future__ import annotations

import json

import numpy as np
import pytest

from maitred.loadtest.bodies import Bodies
from maitred.loadtest.metadata import Route, Unknown, example_in, route_of, signature_of
from maitred.model.signature import Signature
from maitred.wire import binary
from maitred.wire.coerce import from_json, from_raw
from maitred.wire.json import decode


def maker(inputs, rows=1, sizes=None, examples=None, outputs=None):
    signature = Signature(inputs, outputs or {"y": "float32[n]"})
    return signature, Bodies(signature, examples or {}, rows, sizes or {}, np.random.default_rng(3))


def tensors(signature, data, head_length=None):
    """What a server reads in a V2 body."""
    head, blobs = (data, None) if head_length is None else binary.split(data, head_length)
    envelope = decode(head)
    raw = binary.cut(envelope.inputs, blobs)
    found = {}
    for entry in envelope.inputs:
        spec = signature.inputs[entry.name]
        assert entry.datatype == spec.datatype
        found[entry.name] = (
            from_raw(entry.name, spec.dtype, entry.shape, raw[entry.name])
            if entry.name in raw
            else from_json(
                entry.name, spec.dtype, entry.shape, entry.data, spec.nullable, spec.nan, spec.pad, spec.clock
            )
        )
    return envelope.id, found


EVERYTHING = {
    "b": "bool[n]", "i8": "int8[n]", "u8": "uint8[n, 2]", "i64": "int64[n] min=-5 max=-2", "u64": "uint64[n]",
    "f16": "float16[n]", "bf": "bfloat16[n, 2]", "f32": "float32[n, 3] min=0.1 max=0.2", "f64": "float64[n] min=3",
    "s": "str[n]", "raw": "bytes[n]", "c": 'str[n] categories=["red", "blue"]', "k": "int64[n] categories=[7, 9]",
    "t": 'int64[n] time="ms" zone="UTC"', "d": "int64[n] time=\"s\" min=5 max=9", "seq": "int64[n, len]",
    "o": "float32[n] optional", "m": "int64[n] nullable",
}  # fmt: skip


class TestBodies:
    @pytest.mark.parametrize("rows", [1, 3])
    @pytest.mark.parametrize("is_binary", [False, True])
    def test_the_signature_takes_them(self, rows, is_binary):
        signature, bodies = maker(EVERYTHING, rows)
        for number in range(30):
            body = bodies.made("v2", number, is_binary)
            length = dict(body.headers).get("Inference-Header-Content-Length")
            id, found = tensors(signature, body.data, None if length is None else length.encode())
            assert signature.check(found).rows == rows and id == f"bench-{number}"
            assert found["seq"].shape == (rows, 8)
            assert (length is not None) is is_binary

    def test_values_keep_to_categories_and_ranges(self):
        _, bodies = maker(EVERYTHING, 50)
        inputs = {entry["name"]: entry["data"] for entry in json.loads(bodies.made("v2", 0).data)["inputs"]}
        assert set(inputs["c"]) == {"red", "blue"} and set(inputs["k"]) == {7, 9}
        assert set(inputs["i64"]) == {-5, -4, -3, -2} and set(inputs["d"]) == {5, 6, 7, 8, 9}
        assert all(0.1 <= value <= 0.2 for value in inputs["f32"]) and min(inputs["f64"]) >= 3

    @pytest.mark.parametrize("wire", ["v2", "v1", "plain"])
    def test_no_two_are_alike(self, wire):
        _, bodies = maker({"x": "float32[n, 4]"})
        made = [bodies.made(wire, number).data for number in range(1024)]
        assert len(set(made)) == 1024

    def test_the_same_seed_makes_the_same(self):
        one, other = (maker({"x": "float32[n, 4]", "s": "str[n]"})[1] for _ in range(2))
        assert [one.made("v2", n) for n in range(5)] == [other.made("v2", n) for n in range(5)]

    def test_the_plain_route(self):
        inputs = {"x": "float32[n, 2]", "s": "str[n]"}
        one = json.loads(maker(inputs)[1].made("plain", 0).data)
        assert list(one) == ["x", "s"] and len(one["x"]) == 2 and isinstance(one["s"], str)
        three = json.loads(maker(inputs, 3)[1].made("plain", 0).data)
        assert len(three) == 3 and all(len(row["x"]) == 2 for row in three)

    def test_v1(self):
        body = json.loads(maker({"x": "float32[n, 2]"}, 3)[1].made("v1", 0).data)
        assert [list(row) for row in body["instances"]] == [["x"]] * 3

    @pytest.mark.parametrize(("wire", "key"), [("plain", "columns"), ("v1", "inputs")])
    def test_a_model_without_rows_gets_columns(self, wire, key):
        _, bodies = maker({"x": "float64[k, 2]", "y": "float32[]"}, outputs={"total": "float64[1]"}, sizes={"k": 3})
        body = json.loads(bodies.made(wire, 0).data)
        assert np.array(body[key]["x"]).shape == (3, 2) and isinstance(body[key]["y"], float)

    def test_sizes(self):
        inputs = {"ids": "int64[n, seq]", "more": "int64[n, k]", "fill": "int64[n, b] buckets=[16, 32] pad=0"}
        signature, bodies = maker(inputs, 2, {"seq": 5}, {"more": ([1, 3], [1, 2, 3])})
        found = tensors(signature, bodies.made("v2", 0).data)[1]
        assert [found[name].shape for name in inputs] == [(2, 5), (2, 3), (2, 16)]

    def test_values_stay_near_the_example(self):
        examples = {"x": ([1, 3], [0.0, 100.0, -2.0]), "i": ([1], [4]), "s": ([1], ["se"]), "z": ([1], [0.0])}
        signature, bodies = maker(
            {"x": "float32[n, 3]", "i": "int64[n]", "s": "str[n]", "z": "float32[n]"}, 1, {}, examples
        )
        seen = [json.loads(bodies.made("v2", n).data)["inputs"] for n in range(100)]
        for x, i, s, _ in seen:
            assert x["data"][0] == 0 and 90 <= x["data"][1] <= 110 and -2.2 <= x["data"][2] <= -1.8
            assert 0 <= i["data"][0] <= 4 and s["data"] == ["se"]
        assert len({i["data"][0] for _, i, _, _ in seen}) == 5
        assert len({z["data"][0] for *_, z in seen}) > 90  # an example of zeros tells nothing

    @pytest.mark.parametrize(("inputs", "rows", "sizes", "said"), [
        ({"x": "float32[n, k]"}, 1, {"j": 3}, "no size 'j'; it has k, n"),
        ({"x": "float32[4]"}, 2, {}, "no row axis"),
    ])  # fmt: skip
    def test_what_cannot_be_made(self, inputs, rows, sizes, said):
        with pytest.raises(ValueError, match=said):
            maker(inputs, rows, sizes, outputs={"y": "float32[1]"})


class TestMetadata:
    @pytest.mark.parametrize(("path", "wanted"), [
        ("/v2/models/m/infer", Route("v2", "m", "/v2/models/m", "/openapi.json")),
        ("/v2/models/m/versions/3/infer", Route("v2", "m", "/v2/models/m/versions/3", "/openapi.json")),
        ("/proxy/v2/models/a%20b/infer", Route("v2", "a%20b", "/proxy/v2/models/a%20b", "/proxy/openapi.json")),
        ("/v1/models/m:predict", Route("v1", "m", "/v2/models/m", "/openapi.json")),
        ("/predict/m", Route("plain", "m", "/v2/models/m", "/openapi.json")),
        ("/v2/models/m", None), ("/", None), ("/predict/", None), ("/v2/models/m/infer/x", None),
    ])  # fmt: skip
    def test_routes(self, path, wanted):
        assert route_of(path) == wanted

    def test_our_notation_is_read(self):
        told = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4],
                            "parameters": {"notation": "float32[n, 4] min=0 max=1"}}],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}  # fmt: skip
        assert signature_of(told).to_text() == "x: float32[n, 4] min=0 max=1 -> y: float32[n]"

    def test_other_servers(self):
        told = {"name": "m", "inputs": [{"name": "a", "datatype": "INT64", "shape": [-1, -1]},
                                        {"name": "t", "datatype": "BYTES", "shape": [-1, 1]},
                                        {"name": "fixed", "datatype": "BOOL", "shape": [2]}]}  # fmt: skip
        assert signature_of(told).to_text().startswith("a: int64[n, size0_1], t: str[n, 1], fixed: bool[2] -> ")

    @pytest.mark.parametrize(("told", "said"), [
        (None, "no object"), ([], "no object"), ({}, "no inputs"), ({"inputs": []}, "no inputs"),
        ({"inputs": [{}]}, "without a name"), ({"inputs": ["x"]}, "without a name"),
        ({"inputs": [{"name": "x"}]}, "another protocol"),
        ({"inputs": [{"name": "x", "datatype": "np", "shape": [1]}]}, "another protocol"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": "n"}]}, "another protocol"),
        ({"inputs": [{"name": "x", "parameters": {"notation": "floaty[n]"}}]}, "floaty"),
    ])  # fmt: skip
    def test_what_nothing_can_be_made_of(self, told, said):
        with pytest.raises(Unknown, match=said):
            signature_of(told)

    def test_the_example_of_a_description(self):
        inputs = [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
            {"name": "raw", "datatype": "BYTES", "shape": [1], "data": ["aGk="], "parameters": {"encoding": "base64"}},
            {"name": "nested", "shape": [1, 1], "data": [[1]]},
            "odd",
            {"data": 1},
        ]
        content = {"application/json": {"example": {"inputs": inputs}}}
        openapi = {"paths": {"/v2/models/m/infer": {"post": {"requestBody": {"content": content}}}}}
        assert example_in(openapi, "/v2/models/m") == {"x": ([1, 2], [1.0, 2.0])}

    @pytest.mark.parametrize("openapi", [None, [], {}, {"paths": 3}, {"paths": {"/v2/models/m/infer": {"post": []}}}])
    def test_no_example(self, openapi):
        assert example_in(openapi, "/v2/models/m") == {}
