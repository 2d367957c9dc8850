"""The map of names: what it finds, and how it refuses what it does not have."""

from __future__ import annotations

import pytest

from maitred.deployment.router import Router, Served
from maitred.errors import Unknown


@pytest.fixture
def router() -> Router:
    router = Router()
    router.swap({name: Served(name, "1") for name in ("churn", "iris")})
    return router


def test_a_name_leads_to_its_model(router: Router) -> None:
    assert router.get("iris").name == router.get("iris", "1").name == "iris"


@pytest.mark.parametrize(("name", "end"), [("chrun", "; did you mean 'churn'?"), ("zebra", " that are served")])
def test_an_unknown_name_is_refused_with_the_one_that_may_be_meant(router: Router, name: str, end: str) -> None:
    with pytest.raises(Unknown) as caught:
        router.get(name)
    assert caught.value.message.startswith(f"there is no model named '{name}'; GET /v2/models lists")
    assert caught.value.message.endswith(end)


def test_an_unknown_version_is_refused(router: Router) -> None:
    with pytest.raises(Unknown, match="model 'iris' has no version '2'; version 1 is served"):
        router.get("iris", "2")


def test_a_swap_clears_what_was_compiled_from_names(router: Router) -> None:
    routes = {b"/v2/models/iris/infer": 1}
    router.keep(routes)
    router.swap({})
    assert not routes and not router.names
