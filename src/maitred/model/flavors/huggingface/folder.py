"""A checkpoint's folder: what its files say, what of them would run, and what of it the library gets to see."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from maitred.model import pickles
from maitred.model.flavors.huggingface.tokenizer_file import FILE, check_tokenizer
from maitred.model.refusals import CannotLoad, CannotPack

CONFIG: Final = "config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
MODULES: Final = "modules.json"

_MAX_JSON: Final = 8 << 20
"""Bytes of a settings file: one with 20,000 labels takes about one million."""
_MAX_VOCABULARY: Final = 128 << 20
_MAX_DEPTH: Final = 16
_MAX_LAYERS: Final = 1000

_WEIGHTS: Final = "model.safetensors"
_PICKLED: Final = "pytorch_model.bin"
_INDEX: Final = ".index.json"
_SHARD: Final = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_FOREIGN: Final = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "rust_model.ot")

_TOKENIZER_SETTINGS: Final = (TOKENIZER_CONFIG, "special_tokens_map.json")
_OTHER_SETTINGS: Final = ("preprocessor_config.json", "processor_config.json", "generation_config.json")
_VOCABULARIES: Final = (
    "tokenizer.json", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt", "added_tokens.json", "bpe.codes",
)  # fmt: skip
_VOCABULARY_KINDS: Final = (".model", ".spm")
_SENTENCES: Final = (MODULES, "sentence_bert_config.json", "config_sentence_transformers.json")

_TOKENIZER_WORDS: Final = {"tokenizer_class", "padding_side", "truncation_side", "src_lang", "tgt_lang", "errors"}
"""Texts of a tokenizer's settings that name no token; any other could be the path of a file."""
_TOKENIZER_LISTS: Final = {"added_tokens_decoder", "model_input_names", "never_split"}

_DROPPED: Final = {
    "_name_or_path", "name_or_path", "_commit_hash", "auto_map", "attn_implementation", "_attn_implementation",
    "_attn_implementation_internal", "experts_implementation", "_experts_implementation_internal", "use_kernels",
    "task_specific_params", "return_dict", "output_attentions", "output_hidden_states", "custom_generate",
}  # fmt: skip
"""What names a place elsewhere, or changes what a call returns, and nothing that a checkpoint needs."""
_REFUSED: Final = {
    "quantization_config": "its weights are quantized",
    "compression_config": "its weights are compressed",
    "use_pretrained_backbone": "a part of its weights lies elsewhere",
    "use_timm_backbone": "a part of it is another library's",
    "transformers_weights": "it names a file of weights of its own",
    "base_model_name_or_path": "its weights lie elsewhere",
}
_NAMES: Final = {"id2label", "label2id"}
"""Tables of the model's own words, which may look like anything."""


class Weights(NamedTuple):
    """The files that hold a checkpoint's weights."""

    files: tuple[str, ...]
    pickled: bool


class Checkpoint(NamedTuple):
    """A folder whose `config.json` was read; nothing else of it was."""

    root: Path
    names: frozenset[str]
    """The regular files that lie in it, without those of folders below."""
    config: dict[str, Any]

    def settings(self, name: str) -> dict[str, Any]:
        """A JSON file's table; empty where there is no such file. Raises `CannotLoad`."""
        return read_table(self.root / name) if name in self.names else {}

    @property
    def kind(self) -> str:
        """The kind of network, such as `bert`."""
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The class that was saved, such as `BertForSequenceClassification`; empty where the config does not say."""
        architectures = self.config.get("architectures")
        return str(architectures[0]) if isinstance(architectures, list) and architectures else ""


def read_checkpoint(root: Path) -> Checkpoint:
    """Raises `CannotLoad` for a folder that is no checkpoint, or one of which only a part is here."""
    names = frozenset(path.name for path in root.iterdir() if path.is_file() and not path.is_symlink())
    if CONFIG not in names:
        raise CannotLoad(f"there is no regular file {CONFIG} in the folder")
    config = read_table(root / CONFIG)
    kind, architectures = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or not (architectures is None or _are_words(architectures)):
        raise CannotLoad(
            f"{CONFIG} says no model_type, so this is no checkpoint of transformers: write one with save_pretrained, "
            "or pack the model with `maitred pack`"
        )
    if "adapter_config.json" in names:
        raise CannotLoad("the folder holds an adapter: merge it into its base model and save that with save_pretrained")
    return Checkpoint(root, names, config)


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file that is a table. Raises `CannotLoad` for one too large, too deep, or none."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise CannotLoad(f"{path.name} must hold a JSON object")
    return found


def read_json(path: Path) -> Any:
    """Raises `CannotLoad`. Read as the library itself would, so that both see the same."""
    _check_size(path, _MAX_JSON)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CannotLoad(f"{path.name} is not JSON: {type(error).__name__}") from error
    _check_depth(path.name, found)
    return found


def weights_of(checkpoint: Checkpoint) -> Weights:
    """Where the weights lie; safetensors are preferred. Raises `CannotLoad` saying what to do where there are none."""
    for whole, suffix, pickled in ((_WEIGHTS, ".safetensors", False), (_PICKLED, ".bin", True)):
        if whole in checkpoint.names:
            return Weights((whole,), pickled)
        if whole + _INDEX in checkpoint.names:
            return Weights((*_shards(checkpoint, whole + _INDEX, suffix), whole + _INDEX), pickled)
    foreign = sorted(checkpoint.names.intersection(_FOREIGN))
    found = f"; {foreign[0]} is another framework's, which is not read" if foreign else ""
    raise CannotLoad(f"there is no {_WEIGHTS} in the folder{found}: save the model with save_pretrained")


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Whether there is a vocabulary."""
    return bool(_vocabularies(checkpoint))


def code_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The Python files that the settings ask for. Raises `CannotLoad` for code that lies elsewhere."""
    modules: set[str] = set()
    for name in (CONFIG, *_TOKENIZER_SETTINGS, *_OTHER_SETTINGS):
        for value in _asked(checkpoint.settings(name).get("auto_map")):
            module = value.partition(".")[0] + ".py"
            if "--" in value or module not in checkpoint.names:
                raise CannotLoad(f"{name} asks for code that is not in the folder ({value[:80]!a}): save it there")
            modules.add(module)
    return tuple(sorted(modules))


def dangers(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What would run or be unpickled, one line each. Raises `CannotLoad` for what is not to be loaded at all."""
    checked(checkpoint)
    weights = weights_of(checkpoint)
    pickled = [name for name in weights.files if weights.pickled and not name.endswith(_INDEX)]
    lines = [pickles.danger(checkpoint.root / name) for name in pickled]
    code = code_of(checkpoint)
    if code:
        lines.append(f"the code in {', '.join(code)}, which the settings ask for")
    return tuple(lines)


def checked(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config without what names other places. Raises `CannotLoad` for what it cannot do without."""
    if not all(isinstance(checkpoint.config.get(key) or {}, dict) for key in _NAMES):
        raise CannotLoad(f"{CONFIG}: id2label and label2id must be objects")
    return {str(key): value for key, value in _plain(CONFIG, checkpoint.config).items()}


@contextmanager
def view(checkpoint: Checkpoint, trusted: bool) -> Iterator[Path]:
    """A folder for the library to load from: settings without paths and code, links to vocabulary and weights.

    Whatever else lies in the checkpoint does not exist for the library. Code is there only if trusted.
    """
    code = code_of(checkpoint) if trusted else ()
    if FILE in checkpoint.names:
        check_tokenizer(checkpoint.root / FILE)
    with tempfile.TemporaryDirectory(prefix="maitred-") as place:
        folder = Path(place) / "checkpoint"  # always the same name: the library's cache of code goes by it
        folder.mkdir()
        for name, table in _settings(checkpoint, bool(code)).items():
            (folder / name).write_text(json.dumps(table))
        modules = [name for name in checkpoint.names if code and name.endswith(".py")]
        for name in (*_vocabularies(checkpoint), *weights_of(checkpoint).files, *modules):
            (folder / name).symlink_to((checkpoint.root / name).resolve())
        yield folder


def copy(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy what belongs to the checkpoint. Whether pickles and code may come along is settled: only needed ones do."""
    checked(checkpoint)
    code = [name for name in checkpoint.names if code_of(checkpoint) and name.endswith(".py")]
    papers = [name for name in checkpoint.names if name.upper().startswith(("README", "LICENSE", "NOTICE"))]
    known = (CONFIG, *_TOKENIZER_SETTINGS, *_OTHER_SETTINGS, *_SENTENCES)
    settings = [name for name in known if name in checkpoint.names]
    nested = [f"{place}/{CONFIG}" for place in module_folders(checkpoint)]
    for name in (*settings, *_vocabularies(checkpoint), *weights_of(checkpoint).files, *code, *papers, *nested):
        source = checkpoint.root / name
        if source.is_symlink() or not source.is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, folder / name)
        except OSError as error:
            raise CannotPack(f"{name} cannot be copied: {error.strerror}") from error


def module_folders(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The folders that `modules.json` names. Raises `CannotLoad` for one that is not a plain name."""
    if MODULES not in checkpoint.names:
        return ()
    modules = read_json(checkpoint.root / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CannotLoad(f"{MODULES} must hold a list of objects")
    places = tuple(place for module in modules if (place := module.get("path", "")) != "")
    for place in places:
        if not isinstance(place, str) or not _SHARD.fullmatch(place) or (checkpoint.root / place).is_symlink():
            raise CannotLoad(f"{MODULES} names a place that is not a folder beside it")
    return places


# --- files ------------------------------------------------------------------------------------------------------


def _check_size(path: Path, limit: int) -> None:
    try:
        if path.is_symlink() or not path.is_file():
            raise CannotLoad(f"{path.name} is not a regular file")
        size = path.stat().st_size
    except OSError as error:
        raise CannotLoad(f"{path.name} cannot be read: {error.strerror}") from error
    if size > limit:
        raise CannotLoad(f"{path.name} takes {size} bytes, more than {limit}")


def _check_depth(name: str, value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise CannotLoad(f"{name} is nested deeper than {_MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _shards(checkpoint: Checkpoint, index: str, suffix: str) -> tuple[str, ...]:
    table = checkpoint.settings(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CannotLoad(f"{index} has no weight_map")
    shards = {name for name in table.values() if isinstance(name, str)}
    wrong = [name for name in table.values() if not isinstance(name, str) or not _SHARD.fullmatch(name)]
    wrong += [name for name in shards if not name.endswith(suffix)]
    if wrong:
        raise CannotLoad(f"{index} names {str(wrong[0])[:80]!a}, which is not a {suffix} file beside it")
    if missing := sorted(shards - checkpoint.names):
        raise CannotLoad(f"{index} names {missing[0]}, which is not in the folder")
    return tuple(sorted(shards))


def _vocabularies(checkpoint: Checkpoint) -> list[str]:
    names = [name for name in checkpoint.names if name in _VOCABULARIES or name.endswith(_VOCABULARY_KINDS)]
    for name in names:
        _check_size(checkpoint.root / name, _MAX_VOCABULARY)
    return sorted(names)


# --- settings ---------------------------------------------------------------------------------------------------


def _settings(checkpoint: Checkpoint, code: bool) -> dict[str, dict[str, Any]]:
    """The settings files as the library gets to see them."""
    tables = {CONFIG: checked(checkpoint)}
    makers: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
        **dict.fromkeys(_TOKENIZER_SETTINGS, _tokenizer),
        **dict.fromkeys(_OTHER_SETTINGS, _plain),
    }
    for name, maker in makers.items():
        if name in checkpoint.names:
            tables[name] = maker(name, checkpoint.settings(name))
    if code:
        for name, table in tables.items():
            if "auto_map" in (given := checkpoint.settings(name)):
                table["auto_map"] = given["auto_map"]
    return tables


def _plain(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without the dropped keys. Raises `CannotLoad` naming a key that is refused or a path."""
    kept: dict[str, Any] = {}
    for key, value in table.items():
        if key in _NAMES and isinstance(value, dict):
            kept[key] = value
        elif key in _REFUSED and value not in (None, False):
            raise CannotLoad(f"{name}: {key} says that {_REFUSED[key]}, which is not supported")
        elif key == "backbone" and isinstance(value, str):
            raise CannotLoad(f"{name}: backbone says that a part of it lies elsewhere, which is not supported")
        elif "layer" in key and _is_beyond(value):
            raise CannotLoad(f"{name}: {key} is beyond {_MAX_LAYERS}")
        elif key not in _DROPPED:
            kept[key] = _inner(f"{name}: {key[:80]}", value)
    return kept


def _inner(where: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(where, value)
    if isinstance(value, list):
        return [_inner(where, each) for each in value]
    if isinstance(value, str) and _is_place(value):
        raise CannotLoad(f"{where} names a place outside the folder: remove it, or save the model with save_pretrained")
    return value


def _tokenizer(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, switches and tokens; texts that are something else could be paths, and are left out."""
    kept: dict[str, Any] = {}
    for key, value in table.items():
        is_token = key.endswith(("_token", "_tokens"))
        if key in _DROPPED or key.endswith(("_file", "_files", "_path")):
            continue
        if (
            value is None
            or isinstance(value, (bool, int, float))
            or (isinstance(value, str) and (is_token or key in _TOKENIZER_WORDS))
            or (isinstance(value, (list, dict)) and (is_token or key in _TOKENIZER_LISTS))
        ):
            kept[key] = value
    return kept


def _is_place(text: str) -> bool:
    return text.startswith(("/", "~", "\\")) or "../" in text or "..\\" in text or "://" in text


def _is_beyond(value: Any) -> bool:
    return isinstance(value, int) and value > _MAX_LAYERS


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _asked(auto_map: Any) -> Iterator[str]:
    """The names of classes in an `auto_map`, which is a name, a list, or a table of these."""
    if isinstance(auto_map, str):
        yield auto_map
    else:
        for inner in _children(auto_map):
            yield from _asked(inner)
