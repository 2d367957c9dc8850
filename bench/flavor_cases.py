"""The models of `flavors.py`: one for each flavor and form, beside what a user would write with the library alone."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maitred.model.loading import Source, load
from maitred.model.pack import pack
from maitred.model.predictor import Context, call

ROWS = 32
FEATURES = 20
TREES = 100
CITIES = ("amsterdam", "berlin", "copenhagen", "dublin", "edinburgh", "florence")
PLANS = ("free", "small", "large")
WORDS = "the cat sat on a mat and a dog ran in the park with its ball while rain fell over the old town".split()
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear({features}, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3), torch.nn.Softmax(-1)
        )

    def forward(self, x):
        return self.layers(x)
"""


class Case(NamedTuple):
    """Two ways to the same answer, each from the columns of one batch."""

    own: Callable[[], Any]
    ours: Callable[[], Any]


class Kind(NamedTuple):
    """A case before it is built."""

    flavor: str
    form: str
    modules: tuple[str, ...]
    """What has to be installed."""
    build: Callable[[Path], Case]

    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [module for module in self.modules if importlib.util.find_spec(module) is None]


def served(model: Any, folder: Path, example: Any, output: str = "", **more: Any) -> Callable[[], Any]:
    """Pack, load, and answer the example by the direct call, one output of it."""
    trust = "bench: it was made a moment ago"
    pack(model, folder / "packed", name="bench", example=example, trust=trust, **more)
    loaded = load(Source(str(folder / "packed"), trust=trust, options={"threads": 1}))
    assert loaded.example is not None
    inputs = loaded.example.inputs
    for array in inputs.values():
        array.flags.writeable = False  # as it comes out of a request
    name = output or next(iter(loaded.predictor.signature.outputs))
    context = Context(outputs=(name,))
    return lambda: call(loaded.predictor, inputs, context)[name]


def numbers(rows: int = ROWS, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, FEATURES)).astype(np.float32)


def target(features: Any) -> Any:
    return (features[:, 0] + features[:, 1] ** 2 > 1).astype(int)


def mixed(rows: int = ROWS, seed: int = 1) -> dict[str, Any]:
    """Columns of a customer table: four of numbers, two of text."""
    generator = np.random.default_rng(seed)
    return {
        "age": generator.integers(18, 90, rows),
        "income": generator.normal(3000, 900, rows),
        "visits": generator.integers(0, 40, rows),
        "score": generator.random(rows),
        "city": np.array(CITIES, object)[generator.integers(0, len(CITIES), rows)],
        "plan": np.array(PLANS, object)[generator.integers(0, len(PLANS), rows)],
    }


def churned(columns: Mapping[str, Any]) -> Any:
    return ((columns["visits"] < 12) & (columns["plan"] != "large")).astype(int)


def categorical(columns: Mapping[str, Any]) -> Any:
    """A data frame whose text columns have the dtype category."""
    import pandas

    kinds = {"city": CITIES, "plan": PLANS}
    return pandas.DataFrame(
        {
            name: pandas.Categorical(values, categories=list(kinds[name])) if name in kinds else values
            for name, values in columns.items()
        }
    )


# --- scikit-learn ---------------------------------------------------------------------------------------------------


def sklearn_numbers(folder: Path) -> Case:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    many, few = numbers(1000), numbers(seed=2)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(many, target(many))
    return Case(lambda: model.predict_proba(few), served(model, folder, few, "predict_proba"))


def sklearn_mixed(folder: Path) -> Case:
    import pandas
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    many, few = mixed(1000), mixed(seed=2)
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["age", "income", "visits", "score"]),
            ("text", OneHotEncoder(handle_unknown="ignore"), ["city", "plan"]),
        ]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(pandas.DataFrame(many), churned(many))
    return Case(
        lambda: model.predict_proba(pandas.DataFrame(few)),
        served(model, folder, pandas.DataFrame(few), "predict_proba"),
    )


# --- boosted trees --------------------------------------------------------------------------------------------------


def xgboost_numbers(folder: Path) -> Case:
    from xgboost import XGBClassifier

    many, few = numbers(1000), numbers(seed=2)
    model = XGBClassifier(n_estimators=TREES, n_jobs=1).fit(many, target(many))
    return Case(lambda: model.predict_proba(few), served(model, folder, few, "predict_proba"))


def xgboost_categories(folder: Path) -> Case:
    from xgboost import XGBClassifier

    many, few = mixed(1000), mixed(seed=2)
    model = XGBClassifier(n_estimators=TREES, n_jobs=1, enable_categorical=True, tree_method="hist")
    model.fit(categorical(many), churned(many))
    return Case(lambda: model.predict_proba(categorical(few)), served(model, folder, categorical(few), "predict_proba"))


def lightgbm_numbers(folder: Path) -> Case:
    from lightgbm import LGBMClassifier

    many, few = numbers(1000), numbers(seed=2)
    model = LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1).fit(many, target(many))
    return Case(lambda: model.predict_proba(few), served(model, folder, few, "predict_proba"))


def lightgbm_categories(folder: Path) -> Case:
    from lightgbm import LGBMClassifier

    many, few = mixed(1000), mixed(seed=2)
    model = LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1).fit(categorical(many), churned(many))
    return Case(lambda: model.predict_proba(categorical(few)), served(model, folder, categorical(few), "predict_proba"))


def catboost_numbers(folder: Path) -> Case:
    from catboost import CatBoostClassifier

    many, few = numbers(1000), numbers(seed=2)
    model = CatBoostClassifier(iterations=TREES, verbose=False, thread_count=1, allow_writing_files=False)
    model.fit(many, target(many))
    return Case(lambda: model.predict_proba(few, thread_count=1), served(model, folder, few, "predict_proba"))


def catboost_mixed(folder: Path) -> Case:
    import pandas
    from catboost import CatBoostClassifier

    many, few = mixed(1000), mixed(seed=2)
    model = CatBoostClassifier(
        iterations=TREES, verbose=False, thread_count=1, allow_writing_files=False, cat_features=["city", "plan"]
    )
    model.fit(pandas.DataFrame(many), churned(many))
    return Case(
        lambda: model.predict_proba(pandas.DataFrame(few), thread_count=1),
        served(model, folder, pandas.DataFrame(few), "predict_proba"),
    )


# --- graphs and networks --------------------------------------------------------------------------------------------


def onnx_forest(folder: Path, zipmap: bool) -> Case:
    import onnxruntime
    import skl2onnx
    from sklearn.ensemble import RandomForestClassifier

    many, few = numbers(1000), numbers(seed=2)
    model = RandomForestClassifier(TREES, max_depth=6, n_jobs=1, random_state=0).fit(many, target(many))
    text = skl2onnx.to_onnx(model, few[:1], options={"zipmap": zipmap}).SerializeToString()
    (folder / "forest.onnx").write_bytes(text)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(text, settings, providers=["CPUExecutionProvider"])
    name = session.get_outputs()[1].name
    ours = served(folder / "forest.onnx", folder, {"X": few}, name)
    if not zipmap:
        return Case(lambda: session.run([name], {"X": few})[0], ours)
    return Case(lambda: np.array([[row[0], row[1]] for row in session.run([name], {"X": few})[0]]), ours)


def onnx_tensors(folder: Path) -> Case:
    return onnx_forest(folder, False)


def onnx_maps(folder: Path) -> Case:
    return onnx_forest(folder, True)


def torch_form(folder: Path, form: str) -> Case:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    (folder / "bench_net.py").write_text(NET.format(features=FEATURES))
    sys.path.insert(0, str(folder))
    sys.modules.pop("bench_net", None)
    module = importlib.import_module("bench_net")
    sys.path.remove(str(folder))
    net = module.Net().eval()
    few = numbers(seed=2)
    model: Any = net
    if form == "export":
        model = torch.export.export(net, (torch.rand(3, FEATURES),), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    elif form == "script":
        model = torch.jit.trace(net, torch.rand(3, FEATURES))  # type: ignore[no-untyped-call]
    ours = served(model, folder, few, options={"form": "class"} if form == "class" else {})
    run = model.module() if form == "export" else model

    def own() -> Any:
        with torch.inference_mode():
            return run(torch.from_numpy(few)).numpy()

    return Case(own, ours)


def torch_export(folder: Path) -> Case:
    return torch_form(folder, "export")


def torch_script(folder: Path) -> Case:
    return torch_form(folder, "script")


def torch_class(folder: Path) -> Case:
    return torch_form(folder, "class")


def huggingface_classes(folder: Path) -> Case:
    import torch

    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: at for at, word in enumerate([*special, *dict.fromkeys(WORDS)])}, model_max_length=64
    )
    settings = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64, id2label={0: "sad", 1: "glad"},
    )  # fmt: skip
    network = transformers.BertForSequenceClassification(settings).eval()
    network.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    generator = np.random.default_rng(2)
    texts = [" ".join(generator.choice(WORDS, 12)) for _ in range(ROWS)]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "checkpoint").eval()
    words = transformers.AutoTokenizer.from_pretrained(folder / "checkpoint")

    def own() -> Any:
        with torch.inference_mode():
            return model(**words(texts, padding=True, truncation=True, return_tensors="pt")).logits.softmax(-1).numpy()

    return Case(own, served(folder / "checkpoint", folder, texts, "scores"))


def python_function(folder: Path) -> Case:
    few = numbers(seed=2)

    def predict(batch: Any) -> Any:
        return {"y": np.tanh(batch["x"]).sum(1)}

    (folder / "bench_function.py").write_text(
        "import maitred\nimport numpy as np\n"
        f'signature = maitred.Signature({{"x": "float32[n, {FEATURES}]"}}, {{"y": "float32[n]"}})\n'
        'def predict(batch):\n    return {"y": np.tanh(batch["x"]).sum(1)}\n'
    )
    return Case(lambda: predict({"x": few})["y"], served(folder / "bench_function.py", folder, {"x": few}))


KINDS = (
    Kind("scikit-learn", "numbers", ("sklearn", "skops"), sklearn_numbers),
    Kind("scikit-learn", "mixed columns, DataFrame", ("sklearn", "skops", "pandas"), sklearn_mixed),
    Kind("xgboost", "numbers", ("xgboost",), xgboost_numbers),
    Kind("xgboost", "categories, DataFrame", ("xgboost", "pandas"), xgboost_categories),
    Kind("lightgbm", "numbers", ("lightgbm",), lightgbm_numbers),
    Kind("lightgbm", "categories, DataFrame", ("lightgbm", "pandas"), lightgbm_categories),
    Kind("catboost", "numbers", ("catboost",), catboost_numbers),
    Kind("catboost", "mixed columns, DataFrame", ("catboost", "pandas"), catboost_mixed),
    Kind("onnx", "forest, tensors", ("onnxruntime", "skl2onnx", "sklearn"), onnx_tensors),
    Kind("onnx", "forest, ZipMap", ("onnxruntime", "skl2onnx", "sklearn"), onnx_maps),
    Kind("torch", "torch.export", ("torch",), torch_export),
    Kind("torch", "TorchScript", ("torch",), torch_script),
    Kind("torch", "class and weights", ("torch", "safetensors"), torch_class),
    Kind("huggingface", "text classification", ("torch", "transformers", "tokenizers"), huggingface_classes),
    Kind("python", "function", (), python_function),
)
