"""scikit-learn models: skops files as data, pickles and joblib files with trust only."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from maitred.model import pickles
from maitred.model.flavors import Found, Opening, Saved, bases_of
from maitred.model.flavors.archives import refuse_bomb
from maitred.model.flavors.libraries import needs
from maitred.model.flavors.matrix import Matrix
from maitred.model.flavors.options import Check, texts_in
from maitred.model.flavors.sklearn.estimator import forget_names, limit_threads
from maitred.model.flavors.sklearn.inputs import features_of
from maitred.model.flavors.sklearn.signature import Plan, derive, plan
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature

FILE: Final = "model.skops"
_HARMLESS: Final = frozenset({"numpy.dtype"})
"""Types that skops does not list as safe, and that run nothing: every SimpleImputer keeps the dtype it has seen."""
_PICKLES: Final = (".joblib", ".pkl", ".pickle")


class Sklearn:
    """Options, besides those in `options.py`:

    - `methods`: those of the estimator, such as `["predict", "predict_proba", "decision_function"]`,
    - `threads` of OpenMP and BLAS in the whole process; by default what the process was told.
    """

    name = "sklearn"
    suffixes = (".skops", *_PICKLES)
    markers = ()
    libraries = ("scikit-learn", "skops", "numpy")
    options: Mapping[str, Check] = {"features": texts_in, "methods": texts_in}

    def claims(self, model: object) -> bool:
        """Anything with scikit-learn's BaseEstimator among its bases."""
        return ("sklearn.base", "BaseEstimator") in bases_of(type(model))

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """The whole of a pickle; of a skops file the types that skops does not know to be harmless."""
        if opening.file.lower().endswith(_PICKLES):
            return (pickles.danger(opening.path),)
        return tuple(f"the type {name} in {opening.file}, not known to be safe" for name in _untrusted(opening))

    def derive(self, opening: Opening) -> Found | None:
        """None: only the opened estimator tells."""
        return None

    def save(self, model: Any, folder: Path) -> Saved:
        """A skops file, or a copy of the given file."""
        if isinstance(model, Path):
            shutil.copyfile(model, folder / model.name)
            return Saved(model.name)
        skops = _skops()
        try:
            skops.dump(model, folder / FILE)
        except Exception as error:  # whatever of the estimator skops cannot write
            raise CannotPack(f"skops cannot write this {type(model).__name__}: {error}") from error
        return Saved(FILE)

    def open(self, opening: Opening) -> Predictor:
        """The fitted estimator. Raises `MissingExtra`, or `CannotLoad` for what is none."""
        model = _read(opening)
        if not any(callable(getattr(model, method, None)) for method in ("predict", "transform")):
            raise CannotLoad(f"{opening.file} holds a {type(model).__name__}, which can neither predict nor transform")
        threads = threads_of(opening.options)
        limit_threads(model, threads)
        if "threads" in opening.options:
            _limit_pools(threads)
        signature = opening.signature or derive(model, opening.options, opening.sample)
        return SklearnPredictor(model, signature, opening.traits or Traits())


class SklearnPredictor:
    """Runs only the methods behind the wanted outputs."""

    def __init__(self, model: Any, signature: Signature, traits: Traits) -> None:
        self.model = model
        self.signature = signature
        self.traits = traits
        self._all = signature.output_names
        self._plans: Mapping[str, Plan] = {name: plan(name) for name in signature.outputs}
        self._features = features_of(model, signature)
        if isinstance(self._features, Matrix):
            forget_names(model)
        for name, made in self._plans.items():
            if not callable(getattr(model, made.method, None)):
                raise CannotLoad(f"the signature has the output {name!r}, the {type(model).__name__} no such method")

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name: a method's answer, or one part of it for estimators with several targets."""
        features = self._features(inputs)
        answers: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name in context.outputs or self._all:
            made = self._plans[name]
            if made.method not in answers:
                answers[made.method] = getattr(self.model, made.method)(features)
            answer = answers[made.method]
            values[name] = _dense(answer if made.part is None else answer[made.part])
        return values


def _limit_pools(threads: int) -> None:
    """As many threads for OpenMP and BLAS, in the whole process, as the model's options ask for."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)


def _dense(values: Any) -> Any:
    return values.toarray() if hasattr(values, "toarray") else values


def _read(opening: Opening) -> Any:
    """What the file holds. The caller has settled trust; a skops file still gets only the types it needs."""
    if opening.file.lower().endswith(_PICKLES):
        opening.require_trust(f"{opening.file} is a pickle")
        with needs("sklearn", "scikit-learn"):
            import joblib
            import sklearn  # noqa: F401  the pickle needs it; better to hear so by name
        return joblib.load(opening.path)
    trusted = _untrusted(opening) if opening.trusted else []
    return _skops().load(opening.path, trusted=[*_HARMLESS, *trusted])


def _untrusted(opening: Opening) -> list[str]:
    skops = _skops()
    try:
        with zipfile.ZipFile(opening.path) as archive:
            refuse_bomb(archive, opening.file)
        return sorted({*skops.get_untrusted_types(file=opening.path)} - _HARMLESS)
    except CannotLoad:
        raise
    except Exception as error:  # whatever skops says about a file that is none of its own
        raise CannotLoad(f"{opening.file} is not a skops file: {error}") from error


def _skops() -> Any:
    with needs("sklearn", "skops"):
        import skops.io
    return skops.io
