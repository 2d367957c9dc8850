"""The pages: models, OpenAPI from the real signatures, the docs with assets of their own, metrics."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from gates import Port, iris_port
from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from pages import visit
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from maitred.deployment.router import Served
from maitred.gateway.openapi import identifiers
from maitred.gateway.site import site
from maitred.model.description import Description

EXAMPLE = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[5.1,3.5,1.4,0.2]}]}'


@pytest.fixture
def port() -> Port:
    port = iris_port()
    port.add(
        "mixed-1.0",
        {
            "age": "int64[n] min=0 max=150",
            "name": "str[n]",
            "h": "float32[n, s, 2] optional nullable",
            "w": "float64[n] nan=string default=1",
            "flag": "bool[n]",
            "by": "uint8[3]",
        },
        {"score": "float64[n]", "label": 'str[n] labels=["a"]'},
    )
    port.add("total", {"x": "float32[k]"}, {"sum": "float32[]"})
    described = port.router.names["iris"].description
    assert described is not None
    port.router.names["iris"].description = Description(
        name="iris", signature=described.signature, flavor="test", example=EXAMPLE
    )
    waiting = Served("waiting", "1")
    waiting.reason = "installing <b>things</b> in /srv/models/waiting"
    port.router.swap({**port.router.names, "waiting": waiting})
    return port


def document(port: Port) -> dict[str, Any]:
    page = visit(site(port.router), "/openapi.json")
    assert page.headers["content-type"] == "application/json"
    api: dict[str, Any] = json.loads(page.body)
    return api


def accepts(api: dict[str, Any], schema: str, value: Any) -> bool:
    resource: Resource[Any] = Resource.from_contents(api, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("api", resource)
    validator = jsonschema.Draft202012Validator({"$ref": f"api#/components/schemas/{schema}"}, registry=registry)
    return bool(validator.is_valid(value))


def test_the_document_is_valid_openapi(port: Port) -> None:
    api = document(port)
    assert api["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(api).validate()
    OpenAPIV31SpecValidator(document(Port())).validate()


def names_of_operations(port: Port) -> list[str]:
    return [operation["operationId"] for path in document(port)["paths"].values() for operation in path.values()]


def test_operations_have_names_that_any_language_takes(port: Port) -> None:
    names = names_of_operations(port)
    assert {"infer_iris", "predict_iris", "v1_predict_iris", "metadata_iris", "ready_iris"} <= set(names)
    assert {"infer_mixed_1_0", "server", "server_live", "v1_models"} <= set(names)
    assert [name for name in names if not (name.isidentifier() and name.isascii())] == []


def test_operations_of_models_with_similar_names_are_told_apart() -> None:
    port = Port()
    models = ["a-b", "a_b", "a.b", "a_b_2", "server", "v1", "models", "v1_x", "x", "predict_x", "1", "A_b"]
    for name in models:
        port.add(name, {"x": "float32[n]"}, {"y": "float32[n]"})
    names = names_of_operations(port)
    assert len(names) == len(set(names)) == 6 + 5 * len(models)
    assert document(port)["paths"]["/v2/models/a_b/infer"]["post"]["operationId"] == "infer_a_b"
    OpenAPIV31SpecValidator(document(port)).validate()


NAMES = st.text("aB1._-", min_size=1, max_size=4)


@given(st.lists(NAMES, unique=True))
def test_identifiers_are_as_many_as_names(names: list[str]) -> None:
    made = identifiers(names)
    assert len(set(made)) == len(names)
    assert all(f"infer_{identifier}".isidentifier() for identifier in made)
    assert all(identifier == name for identifier, name in zip(made, names, strict=True) if f"_{name}".isidentifier())


def test_every_route_is_in_it(port: Port) -> None:
    paths = set(document(port)["paths"])
    assert {
        "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/repository/index", "/v1/models",
        "/predict/iris", "/v2/models/iris", "/v2/models/iris/ready", "/v2/models/iris/infer", "/v1/models/iris:predict",
        "/predict/mixed-1.0", "/v2/models/total/infer",
    } <= paths  # fmt: skip
    assert not [path for path in paths if "waiting" in path]
    for path, methods in document(port)["paths"].items():
        for method in methods:
            assert port.ask(method.upper(), path, b"{}").status in (200, 400, 503), path


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("iris.Row", [{"x": [1, 2, 3, 4]}], [{}, {"x": [1, 2, 3]}, {"x": ["a"] * 4}, {"x": [[1, 2, 3, 4]]}]),
        (
            "mixed-1.0.Row",
            [
                {"age": 3, "name": "a", "flag": True, "by": [1, 2, 3]},
                {"age": 0, "name": "", "flag": False, "by": [0, 0, 255], "h": [[None, 1.5]], "w": "NaN"},
            ],
            [
                {"age": 3, "name": "a", "flag": True},
                {"age": -1, "name": "a", "flag": True, "by": [1, 2, 3]},
                {"age": 1.5, "name": "a", "flag": True, "by": [1, 2, 3]},
                {"age": 3, "name": 5, "flag": True, "by": [1, 2, 3]},
                {"age": 3, "name": "a", "flag": 1, "by": [1, 2, 3]},
                {"age": 3, "name": "a", "flag": True, "by": [1, 2, 256]},
                {"age": 3, "name": "a", "flag": True, "by": [1, 2, 3], "w": "nope"},
                {"age": 3, "name": "a", "flag": True, "by": [1, 2, 3], "h": [[1]]},
            ],
        ),
        ("iris.PlainRequest", [{"x": [1] * 4}, [{"x": [1] * 4}], [], {"columns": {"x": [[1] * 4]}}], [5, [5]]),
        ("iris.V1Request", [{"instances": [[1] * 4]}, {"instances": [{"x": [1] * 4}]}, {"inputs": [[1] * 4]}], [{}]),
        (
            "iris.InferRequest",
            [
                json.loads(EXAMPLE),
                {"id": "a", "parameters": {"k": 1}, **json.loads(EXAMPLE), "outputs": [{"name": "p"}]},
            ],
            [
                {},
                {"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1]}]},
                {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 4], "data": [1]}]},
                {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1]}]},
                {**json.loads(EXAMPLE), "outputs": [{"name": "q"}]},
                {**json.loads(EXAMPLE), "id": 5},
            ],
        ),
        ("total.Row", [{"x": [1, 2]}], [{"x": 1}]),
    ],
)
def test_schemas_say_what_the_routes_take(port: Port, schema: str, good: list[Any], bad: list[Any]) -> None:
    api = document(port)
    assert [value for value in good if not accepts(api, schema, value)] == []
    assert [value for value in bad if accepts(api, schema, value)] == []


def test_answers_fit_their_schemas(port: Port) -> None:
    api = document(port)
    body = json.loads(EXAMPLE)
    assert accepts(api, "iris.InferResponse", port.infer("iris", body).json)
    assert accepts(api, "iris.PlainResponse", port.ask("POST", "/predict/iris", {"x": [1, 2, 3, 4]}).json)
    assert accepts(api, "Error", port.infer("iris", b"").json)
    assert not accepts(api, "iris.InferResponse", {"outputs": []})


def test_examples_work_as_they_are_shown(port: Port) -> None:
    api = document(port)
    for path, kind in (
        ("/v2/models/iris/infer", "Infer"), ("/predict/iris", "Plain"), ("/v1/models/iris:predict", "V1"),
    ):  # fmt: skip
        example = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert accepts(api, f"iris.{kind}Request", example)
        assert port.ask("POST", path, example).status == 200


def test_the_list_of_models(port: Port) -> None:
    page = visit(site(port.router), "/")
    assert page.status == 200
    assert "iris" in page.text
    assert "float32[n, 4]" in page.text
    assert "<b>" not in page.text
    assert "/srv" not in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_the_docs_and_their_assets(port: Port) -> None:
    app = site(port.router)
    page = visit(app, "/docs")
    assert page.headers["content-type"].startswith("text/html")
    found = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert len(found) >= 3
    for path in found:
        assert path.startswith("/"), "nothing from elsewhere"
        assert visit(app, path).status == 200, path
    assert visit(app, "/docs/docs.js").headers["content-type"].startswith("text/javascript")
    for text in (page.text, visit(app, "/docs/docs.js").text, visit(app, "/docs/docs.css").text):
        assert "://" not in text
    assert "innerHTML" not in visit(app, "/docs/docs.js").text


@pytest.mark.parametrize(
    "path", ["/nope", "/docs/nope", "/docs/..%2fsite.py", "/docs/../site.py", "/docs/docs.js/x", "/docs/__init__.py"]
)
def test_other_paths(port: Port, path: str) -> None:
    page = visit(site(port.router), path)
    assert page.status == 404
    assert "error" in json.loads(page.body)


def test_methods(port: Port) -> None:
    page = visit(site(port.router), "/openapi.json", "POST")
    assert page.status == 405
    assert "GET" in page.headers["allow"]
    assert visit(site(port.router), "/docs", "HEAD").status == 200
    page = visit(site(port.router), "/docs", "OPTIONS")
    assert (page.status, page.text) == (204, "")
    assert set(page.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
    assert visit(site(port.router), "/nope", "OPTIONS").status == 404


def test_metrics(port: Port) -> None:
    page = visit(site(port.router, lambda: "up 1\n"), "/metrics")
    assert page.text == "up 1\n"
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = visit(site(port.router), "/metrics")
    assert page.status == 404
    assert "admin port" in page.text


def test_a_failure_tells_nothing(port: Port) -> None:
    def broken() -> str:
        raise RuntimeError("secret")

    app = site(port.router, broken)
    with pytest.raises(RuntimeError, match="secret"):  # for the log of whoever runs the application
        visit(app, "/metrics")
