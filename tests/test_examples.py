"""The examples as their users run them, prepared, served and asked in processes of their own; then their edges."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import struct
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

import maitred

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.timeout(300)  # the first test of an example also prepares and serves it


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner: Any = _loaded(EXAMPLES / "run.py")
NAMES = list(runner.NEEDS)


class Street:
    """The examples that tests have asked for, each prepared and served once."""

    def __init__(self, build: Path, stack: contextlib.ExitStack) -> None:
        self.build = build
        self._stack = stack
        self._served: dict[str, tuple[str, str]] = {}

    def url(self, name: str) -> str:
        """Where that example is served; skips the test where what it needs is not installed."""
        if modules := runner.missing(name):
            pytest.skip(f"example {name} needs {', '.join(modules)}: `make setup-all` installs them")
        if name not in self._served:
            self._served[name] = self._serve(name)
        url, fault = self._served[name]
        assert not fault, fault
        return url

    def _serve(self, name: str) -> tuple[str, str]:
        """Where the example is served, and what went wrong on the way there."""
        own = self.build / f"{name}-alone"
        own.mkdir()
        try:
            runner.prepare(name, own)
            url, faults = self._stack.enter_context(runner.served([name], own))
        except runner.Failed as failed:
            return "", str(failed)
        return url, faults[name]

    def artifact(self, name: str) -> str:
        self.url(name)
        return str(self.build / f"{name}-alone" / name)


@pytest.fixture(scope="session")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    with contextlib.ExitStack() as stack:
        yield Street(tmp_path_factory.mktemp("examples"), stack)


def post(url: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def ask(url: str, name: str, body: Any) -> tuple[int, Any]:
    return post(url, f"/predict/{name}", json.dumps(body).encode())


def send(url: str, name: str, *pictures: bytes) -> tuple[int, Any]:
    """Pictures as one binary tensor: the outputs by name, or the error."""
    raw = b"".join(struct.pack("<I", len(picture)) + picture for picture in pictures)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(pictures)]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    status, answer = post(url, f"/v2/models/{name}/infer", head + raw, length)
    if status != 200:
        return status, answer["error"]
    return status, {output["name"]: output["data"] for output in answer["outputs"]}


# --- what `make examples` shows ---------------------------------------------------------------------------------


@pytest.mark.story
@pytest.mark.parametrize("name", NAMES)
def test_an_example_answers_rightly(street: Street, name: str) -> None:
    line = runner.ask(name, street.url(name))
    assert line.startswith("right  ")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_complete(name: str) -> None:
    for file in ("README.md", "prepare.py", "ask.py"):
        assert (EXAMPLES / name / file).is_file()
    settings = yaml.safe_load((EXAMPLES / "maitred.yaml").read_text())
    assert settings["models"][name]["source"] == f"../build/examples/{name}"
    assert f"[{name}]({name}/README.md)" in (EXAMPLES / "README.md").read_text()


MODEL = """
import maitred


class Twice(maitred.Model):
    signature = maitred.Signature({"x": "float64[n]"}, {"y": "float64[n]"})

    def predict(self, batch):
        return {"y": batch["x"] * 2}
"""
PREPARE = """
import sys

import maitred
from model import Twice

if "MOOD" == "unprepared":
    sys.exit("there is no data")
maitred.pack(Twice, sys.argv[1], name="MOOD", example={"x": [1.0]})
"""
ASK = """
import json
import sys
import urllib.request

request = urllib.request.Request(sys.argv[1] + "/predict/MOOD", b'{"x": 21}', {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=30) as answer:
    y = json.load(answer)["y"]
if "MOOD" == "broken":
    raise ValueError(f"{y} is not expected")
print("right" if "MOOD" == "good" else "WRONG", "", y)
sys.exit("MOOD" != "good")
"""
MOODS = ("unprepared", "untrusted", "wrong", "broken", "good")


@pytest.mark.story
def test_one_bad_example_keeps_no_other_from_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {mood: {"source": "elsewhere", "trust": "tests: written here"} for mood in MOODS}
    del models["untrusted"]["trust"]
    (tmp_path / "maitred.yaml").write_text(yaml.safe_dump({"models": models}))
    for mood in MOODS:
        (tmp_path / mood).mkdir()
        for file, text in (("model.py", MODEL), ("prepare.py", PREPARE), ("ask.py", ASK)):
            (tmp_path / mood / file).write_text(text.replace("MOOD", mood))
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "NEEDS", {**{mood: ["json"] for mood in MOODS}, "absent": ["json", "no_such_module"]})
    (tmp_path / "build").mkdir()

    found = {outcome.name: outcome for outcome in runner.outcomes(["absent", *MOODS], tmp_path / "build")}

    assert found["absent"].right
    assert found["absent"].line.startswith("skipped: needs no_such_module,")
    assert found["good"] == ("good", "right  42.0", True)
    for mood, reason in {
        "unprepared": "cannot be prepared: there is no data",
        "untrusted": "loading it could run code",
        "wrong": "42.0",
        "broken": "ValueError: 42.0 is not expected",
    }.items():
        assert not found[mood].right
        assert found[mood].line.startswith("WRONG  ")
        assert reason in found[mood].line


# --- fraud ------------------------------------------------------------------------------------------------------

TRANSACTION = {"f1": 50, "f2": 21, "f3": 77, "f4": 0, "f5": 28, "f6": 0, "f7": 27, "f8": 48, "f9": 22}


@pytest.mark.story
def test_fraud_is_judged_alike_embedded_and_served(street: Street) -> None:
    status, served = ask(street.url("fraud"), "fraud", TRANSACTION)
    assert status == 200
    with maitred.load(street.artifact("fraud")) as model:
        own = model.predict({name: [value] for name, value in TRANSACTION.items()})
    assert served["predict_proba"] == own["predict_proba"][0].tolist()


@pytest.mark.story
def test_a_transaction_of_another_form_is_refused_by_name(street: Street) -> None:
    status, answer = ask(street.url("fraud"), "fraud", {**TRANSACTION, "f4": 0.5})
    assert status == 400
    assert "'f4'" in answer["error"]


# --- churn ------------------------------------------------------------------------------------------------------

CUSTOMER = {
    "tenure": 3, "monthly_charges": 80.5, "total_charges": 241.5, "senior_citizen": False, "partner": False,
    "dependents": False, "paperless_billing": True, "internet_service": "Fiber optic",
    "payment_method": "Electronic check", "contract": "Month-to-month",
}  # fmt: skip


@pytest.mark.story
def test_a_customer_is_judged_alike_by_row_by_column_and_embedded(street: Street) -> None:
    url = street.url("churn")
    customers = [
        CUSTOMER, {**CUSTOMER, "total_charges": None}, {**CUSTOMER, "contract": "Three years"},
        {**CUSTOMER, "payment_method": "Gold"},
    ]  # fmt: skip
    columns = {name: [customer[name] for customer in customers] for name in CUSTOMER}
    alone = [ask(url, "churn", customer)[1] for customer in customers]
    chances = [answer["predict_proba"] for answer in alone]
    assert len({leaves for _, leaves in chances}) == len(customers)
    assert [answer["predict"] for answer in alone] == ["Yes" if leaves > 0.5 else "No" for _, leaves in chances]
    by_row = [answer["predict_proba"] for answer in ask(url, "churn", customers)[1]]
    by_column = ask(url, "churn", {"columns": columns})[1]["columns"]["predict_proba"]
    with maitred.load(street.artifact("churn")) as model:
        own = model.predict(columns)["predict_proba"]
    for other in (by_row, by_column, own):
        np.testing.assert_allclose(other, chances, rtol=1e-9)


@pytest.mark.story
def test_a_customer_without_a_column_is_refused_by_name(street: Street) -> None:
    status, answer = ask(street.url("churn"), "churn", {key: CUSTOMER[key] for key in CUSTOMER if key != "tenure"})
    assert status == 400
    assert "'tenure'" in answer["error"]


# --- embeddings -------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_sentence_has_the_same_vector_in_any_company(street: Street) -> None:
    url = street.url("embeddings")
    texts = ["A man plays a guitar.", "", "word " * 300, "日本語 🎸", "A man plays a guitar.", "x", "A dog sleeps."]
    alone = np.array([ask(url, "embeddings", {"text": text})[1]["vector"] for text in texts], np.float32)
    together = np.array(ask(url, "embeddings", {"columns": {"text": texts}})[1]["columns"]["vector"], np.float32)
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    assert np.array_equal(together[0], together[4])


# --- pictures ---------------------------------------------------------------------------------------------------


def photo() -> bytes:
    import sklearn.datasets

    return (Path(sklearn.datasets.__file__).with_name("images") / "flower.jpg").read_bytes()


def picture(width: int, height: int, form: str = "PNG", mode: str = "RGB") -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new(mode, (width, height), "white").save(file, form)
    return file.getvalue()


def huge(width: int, height: int) -> bytes:
    """A PNG of so many black and white pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compressobj()
    data = b"".join(rows.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)) + rows.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "no JPEG, PNG or WebP"),
    "words": (lambda: b"I am a picture, trust me", "no JPEG, PNG or WebP"),
    "another form": (lambda: picture(8, 8, "GIF"), "no JPEG, PNG or WebP"),
    "half a photo": (lambda: photo()[:20_000], "Truncated"),
    "half a head": (lambda: picture(8, 8)[:20], "cannot be read"),
    "too large": (lambda: huge(8000, 8000), "more than 50000000"),
    "a strip": (lambda: picture(2, 4000), "too thin"),
    "a bomb": (lambda: huge(40_000, 40_000), "exceeds limit"),
}


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "kind"), [("image", kind) for kind in HOSTILE if kind != "a strip"] + [("ocr", kind) for kind in HOSTILE]
)
def test_a_hostile_picture_fails_alone_and_with_its_reason(street: Street, name: str, kind: str) -> None:
    url = street.url(name)
    make, reason = HOSTILE[kind]
    bad, good = make(), photo()
    outcomes: list[tuple[int, Any]] = []
    neighbour = threading.Thread(target=lambda: outcomes.append(send(url, name, good)))
    neighbour.start()
    status, error = send(url, name, bad)
    neighbour.join(60)
    assert status == 400
    assert reason in error
    assert "object at 0x" not in error
    assert [status for status, _ in outcomes] == [200]


@pytest.mark.story
@pytest.mark.parametrize(
    ("form", "mode"), [("JPEG", "L"), ("PNG", "RGBA"), ("PNG", "1"), ("WEBP", "RGB"), ("PNG", "P")]
)
def test_pictures_of_every_kind_share_a_request(street: Street, form: str, mode: str) -> None:
    status, outputs = send(street.url("image"), "image", photo(), picture(3, 700, form, mode))
    assert status == 200
    assert outputs["label"][0] == "daisy"
    assert len(outputs["label"]) == 10
    assert outputs["probability"][:5] == sorted(outputs["probability"][:5], reverse=True)


@pytest.mark.story
def test_a_page_may_hold_no_line_or_several(street: Street) -> None:
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (500, 260), "white")
    for at, text in enumerate(("first line", "second line")):
        ImageDraw.Draw(page).text((20, 20 + 120 * at), text, fill="black", font=ImageFont.load_default(44))
    file = io.BytesIO()
    page.save(file, "PNG")
    status, outputs = send(street.url("ocr"), "ocr", picture(200, 100), file.getvalue())
    assert status == 200
    assert outputs["text"][0] == ""
    assert json.loads(outputs["lines"][0]) == []
    assert outputs["text"][1].replace(" ", "") == "firstline\nsecondline"
    first, second = json.loads(outputs["lines"][1])
    assert second["box"][0][1] > first["box"][2][1]  # it begins below where the first one ends
    assert 0.5 < first["score"] <= 1
