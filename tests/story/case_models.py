"""Models of troublesome tensors: echoes of every dtype, a filter, answers of every Python type, a gate for batches."""

import numpy as np

import maitred
from models import DTYPES


def _echo(kind, form=""):
    return maitred.Signature({"x": kind + form}, {"y": kind + form.removeprefix(" nullable")})


class _Echo(maitred.Model):
    def predict(self, batch):
        return {"y": batch["x"]}


for _dtype in DTYPES:
    for _shape in ("n", "n, k"):
        _name = f"{'Flat' if _shape == 'n' else 'Wide'}_{_dtype}"
        globals()[_name] = type(_name, (_Echo,), {"signature": _echo(f"{_dtype}[{_shape}]"), "__module__": __name__})

FORMS = {"lax": " nullable nan=null", "spoken": " nullable nan=string"}
for _form, _options in FORMS.items():
    globals()[_form] = type(_form, (_Echo,), {"signature": _echo("float32[n]", _options), "__module__": __name__})


class Fixed(_Echo):
    signature = maitred.Signature({"x": "float32[n, 4]"}, {"y": "float32[n, 4]"})


class Gated(maitred.Model):
    """Three outputs that tell whose row it was; with `wait`, the path of a pipe, it answers once that was closed."""

    signature = maitred.Signature(
        {"x": "float64[n]", "wait": "str[] optional"},
        {"twice": "float32[n]", "pair": 'float64[n, 2] labels=["plain","negative"]', "text": "str[n]"},
    )

    def predict(self, batch):
        if "wait" in batch:
            with open(batch["wait"].item()) as pipe:
                pipe.read()
        x = batch["x"]
        return {"twice": x * 2, "pair": np.column_stack([x, -x]), "text": [f"row {value:g}" for value in x]}


class Filter(maitred.Model):
    """Not row-wise: keeps what is above zero, and says how many and where those were."""

    signature = maitred.Signature(
        {"x": "float32[n]"}, {"kept": "float32[m]", "names": "str[m]", "count": "int64[]", "all": "float32[n]"}
    )

    def predict(self, batch):
        x = batch["x"]
        kept = x[x > 0]
        return {"kept": kept, "names": [f"{value:g}" for value in kept], "count": len(kept), "all": x}


class Options(maitred.Model):
    """Takes one input that may be left out, one with a default for each row, and one for the whole batch."""

    signature = maitred.Signature(
        {"x": "int64[n]", "plus": "int64[n] optional", "times": "int64[n] default=3", "minus": "int64[] default=0"},
        {"y": "int64[n]", "seen": "str[n]"},
    )

    def predict(self, batch):
        y = batch["x"] * batch["times"] - batch["minus"]
        if "plus" in batch:
            y = y + batch["plus"]
        return {"y": y, "seen": [",".join(sorted(batch))] * len(y)}


class Three(maitred.Model):
    signature = maitred.Signature({"i": "int32[n]", "f": "float32[n]", "s": "str[n]"}, {"y": "float64[n]"})

    def predict(self, batch):
        return {"y": batch["i"] + batch["f"]}


class Columns(maitred.Model):
    """A column of one, which callers may call a column, and the other way round."""

    signature = maitred.Signature({"a": "int64[n]", "b": "str[n, 1]"}, {"a": "int64[n]", "b": "str[n, 1]"})

    def predict(self, batch):
        return dict(batch)


def _frame(x):
    import pandas

    return pandas.DataFrame({"label": [f"row {value}" for value in x], "half": x / 2, "more": x})


def _arrow(x):
    import pyarrow

    return pyarrow.Table.from_pandas(_frame(x))


class _Own:
    """A type that no output can be made of."""


RETURNS = {
    "frame": _frame,
    "categorical": lambda x: _frame(x).astype({"label": "category"}),
    "arrow": _arrow,
    "dict": lambda x: _frame(x).to_dict("list"),
    "arrays": lambda x: {"half": x / 2, "label": np.array([f"row {value}" for value in x])},
    "series": lambda x: {"half": _frame(x)["half"], "label": _frame(x)["label"]},
    "records": lambda x: _frame(x).to_dict("records"),
    "numpy scalars": lambda x: [{"half": np.float64(value / 2), "label": np.str_(f"row {value}")} for value in x],
    "none": lambda x: None,
    "generator": lambda x: (value for value in x),
    "scalar": lambda x: np.float32(1),
    "own type": lambda x: _Own(),
    "one series": lambda x: _frame(x)["half"],
    "none inside": lambda x: {"half": None, "label": [""] * len(x)},
    "a None among them": lambda x: {"half": x / 2, "label": [None] * len(x)},
    "own type inside": lambda x: {"half": [_Own()] * len(x), "label": [""] * len(x)},
    "an output less": lambda x: {"half": x / 2},
    "another shape": lambda x: {"half": np.zeros((len(x), 2)), "label": [""] * len(x)},
    "too few rows": lambda x: _frame(x).iloc[1:],
    "too many rows": lambda x: _frame(np.concatenate([x, x])),
    "rows of one": lambda x: {"half": x / 2, "label": ["only one row"] * (len(x) + 1)},
}
"""What a model gives for its rows, by name; the first eight are right."""


class Returns(maitred.Model):
    signature = maitred.Signature({"x": "int64[n]", "kind": "str[]"}, {"label": "str[n]", "half": "float64[n]"})

    def predict(self, batch, context):
        kind = "dict" if context.shadow else batch["kind"].item()
        return RETURNS[kind](batch["x"])


class Drops(maitred.Model):
    """Leaves out negative rows."""

    signature = maitred.Signature({"x": "int64[n]"}, {"y": "int64[n]"})

    def predict(self, batch):
        x = batch["x"]
        return {"y": x[x >= 0]}


class Repeats(Drops):
    """Gives negative rows twice."""

    def predict(self, batch):
        x = batch["x"]
        return {"y": np.repeat(x, np.where(x < 0, 2, 1))}


class Sorts(Drops):
    def predict(self, batch):
        return {"y": np.sort(batch["x"])}


class Shifts(Drops):
    """Gives each row what belongs to its neighbour."""

    def predict(self, batch):
        return {"y": np.roll(batch["x"], 1)}


class Swaps(Drops):
    """Leaves out the largest row and gives the smallest twice, so that the count is right."""

    def predict(self, batch):
        x = batch["x"]
        order = np.sort(x)
        return {"y": np.concatenate([order[:1], order[:-1]])}


class Unique(Drops):
    def predict(self, batch):
        return {"y": np.unique(batch["x"])}
