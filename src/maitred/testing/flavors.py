"""The tests that every flavor must pass: subclass `FlavorContract` in a test file and fill in the first three names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from maitred.model import example as examples
from maitred.model.artifact import open_artifact, verify
from maitred.model.description import Description
from maitred.model.example import Example
from maitred.model.flavors import FLAVORS, Flavor, Opening, for_file, for_object
from maitred.model.loading import Loaded, Source, describe, load, replay, run, warmup_batches
from maitred.model.manifest import FILE
from maitred.model.pack import pack
from maitred.model.refusals import Corrupt, LoadRefused, MissingExtra, Untrusted

_DESCRIBE = """
import sys
from maitred.model.loading import Source, describe
describe(Source(sys.argv[1], trust_file=sys.argv[2]))
wrong = {name.split(".")[0] for name in sys.modules} & set(sys.argv[3].split(","))
assert not wrong, f"describing a model imported {wrong}"
"""


def as_described(loaded: Loaded) -> Description:
    """What is known of a loaded model, without what only its loading could tell."""
    return msgspec.structs.replace(loaded.description, native=False)


class FlavorContract:
    """What a flavor promises, as tests for pytest. A model of at least one row-wise output is assumed."""

    name: ClassVar[str]
    """The flavor's name, as it is registered."""
    frameworks: ClassVar[tuple[str, ...]] = ()
    """Modules that only `save` and `open` may import."""
    tolerance_seconds: ClassVar[float] = 60.0

    def model(self) -> Any:
        """An object that the flavor claims."""
        raise NotImplementedError

    def example(self) -> Any:
        """At least three different rows for it, in any form that `pack` takes."""
        raise NotImplementedError

    # --- what the tests stand on --------------------------------------------------------------------------------

    @pytest.fixture
    def flavor(self) -> Flavor:
        return FLAVORS.open(self.name)

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A record of trust that is empty and nobody else's."""
        monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
        return tmp_path / "home"

    @pytest.fixture
    def packed(self, tmp_path: Path, home: Path) -> Path:
        pack(self.model(), tmp_path / "packed", name="contract", example=self.example())
        return tmp_path / "packed"

    @pytest.fixture
    def loaded(self, packed: Path) -> Loaded:
        return load(Source(str(packed), trust="tester: the contract suite"))

    # --- found, saved, loaded -----------------------------------------------------------------------------------

    def test_it_is_found_by_name_by_file_and_by_object(self, flavor: Flavor) -> None:
        assert isinstance(flavor, Flavor)
        assert FLAVORS.open(self.name) is flavor
        assert all(for_file(f"model{suffix}") is flavor for suffix in flavor.suffixes)
        assert for_object(self.model()) is flavor

    def test_it_claims_nothing_foreign(self, flavor: Flavor) -> None:
        assert not any(flavor.claims(thing) for thing in (None, 3, "model", b"model", {}, [], object()))

    def test_it_saves_a_file_inside_the_folder(self, flavor: Flavor, tmp_path: Path) -> None:
        saved = flavor.save(self.model(), tmp_path)
        assert (tmp_path / saved.file).is_file()
        assert (tmp_path / saved.file).resolve().is_relative_to(tmp_path.resolve())
        assert saved.file.lower().endswith(flavor.suffixes) or saved.file in flavor.markers

    def test_what_was_packed_repeats_its_example(self, loaded: Loaded) -> None:
        assert loaded.example is not None
        assert loaded.example.outputs.keys() == loaded.predictor.signature.outputs.keys()
        replay(loaded)

    def test_the_manifest_tells_what_the_loaded_model_tells(self, packed: Path, loaded: Loaded) -> None:
        told = describe(Source(str(packed)))
        assert told is not None
        assert (told.signature, told.traits) == (loaded.predictor.signature, loaded.predictor.traits)
        assert told.flavor == self.name
        assert told.digest == loaded.description.digest
        assert Description.decode(told.encode()) == told

    def test_the_versions_of_its_libraries_are_recorded(self, flavor: Flavor, loaded: Loaded) -> None:
        assert {"python", *flavor.libraries} == loaded.description.libraries.keys()

    # --- predicting ---------------------------------------------------------------------------------------------

    def test_it_gives_the_outputs_that_are_wanted(self, loaded: Loaded) -> None:
        assert loaded.example is not None
        every = run(loaded.predictor, loaded.example.inputs)
        for name in loaded.predictor.signature.outputs:
            alone = run(loaded.predictor, loaded.example.inputs, (name,))
            assert alone.keys() == {name}
            assert np.array_equal(alone[name], every[name])

    def test_rows_do_not_depend_on_their_neighbours(self, loaded: Loaded) -> None:
        example, signature = loaded.example, loaded.predictor.signature
        assert example is not None
        assert signature.row_wise
        for row in range(example.rows(signature)):
            index = np.array([row])
            inputs = examples.take_rows(example.inputs, signature, index)
            wanted = Example(inputs, examples.take_rows(example.outputs, signature, index))
            assert not examples.differences(wanted, run(loaded.predictor, inputs), signature)

    def test_it_leaves_its_inputs_alone(self, loaded: Loaded) -> None:
        assert loaded.example is not None
        before = {name: repr(array.tolist()) for name, array in loaded.example.inputs.items()}  # NaN is NaN there
        run(loaded.predictor, loaded.example.inputs)
        assert before == {name: repr(array.tolist()) for name, array in loaded.example.inputs.items()}

    def test_it_runs_every_batch_of_the_warm_up(self, loaded: Loaded) -> None:
        sizes = []
        for inputs in warmup_batches(loaded, 8):
            outputs = run(loaded.predictor, inputs)
            sizes.append({len(array) for array in outputs.values()})
        assert sizes == [{1}, {2}, {4}, {8}]

    # --- safe ---------------------------------------------------------------------------------------------------

    def test_loading_and_running_leave_the_folder_as_it_was(self, packed: Path, loaded: Loaded) -> None:
        replay(loaded)
        verify(open_artifact(packed))

    def test_one_flipped_byte_is_refused_by_name(self, packed: Path) -> None:
        source = Source(str(packed), trust="tester: the contract suite")
        for path in [path for path in packed.rglob("*") if path.is_file()]:
            good = path.read_bytes()
            path.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
            with pytest.raises(LoadRefused) as refused:
                load(source)
            assert path.name == FILE or isinstance(refused.value, Corrupt)
            assert path.name in refused.value.message
            path.write_bytes(good)
        load(source)

    def test_what_would_run_is_refused_without_trust(self, flavor: Flavor, packed: Path) -> None:
        artifact = open_artifact(packed)
        manifest = artifact.manifest
        opening = Opening(root=packed, file=manifest.file, options=manifest.options, packed=True)
        if not flavor.dangers(opening):
            load(Source(str(packed)), isolated=False)
            return
        with pytest.raises(Untrusted, match="--trust"):
            load(Source(str(packed)))
        with pytest.raises(Untrusted, match="process"):
            load(Source(str(packed), trust="tester: the contract suite"), isolated=False)

    def test_describing_imports_no_framework(self, packed: Path, home: Path) -> None:
        arguments = [sys.executable, "-c", _DESCRIBE, str(packed), str(home / "trust.toml"), ",".join(self.frameworks)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=self.tolerance_seconds, check=False)
        assert done.returncode == 0, done.stderr

    def test_a_missing_framework_is_told_by_its_extra(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if not self.frameworks:
            return
        for module in [name for name in sys.modules if name.split(".")[0] in self.frameworks]:
            monkeypatch.delitem(sys.modules, module)
        for framework in self.frameworks:
            monkeypatch.setitem(sys.modules, framework, None)
        with pytest.raises(MissingExtra, match="pip install"):
            load(Source(str(packed), trust="tester: the contract suite"))

    def test_a_file_of_nonsense_is_refused(self, flavor: Flavor, tmp_path: Path, home: Path) -> None:
        for number, content in enumerate((b"", b"nonsense \x00\xff" * 100)):
            folder = tmp_path / f"nonsense{number}"
            folder.mkdir()
            for name in [f"model{suffix}" for suffix in flavor.suffixes[:1]] or flavor.markers[:1]:
                (folder / name).write_bytes(content)
                with pytest.raises(LoadRefused):
                    load(Source(str(folder / name) if flavor.suffixes else str(folder)))
