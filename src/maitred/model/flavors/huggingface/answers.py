"""What networks answer to texts and images, by task: labels with scores, sentence vectors, words, spans, text."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from maitred.errors import InvalidInput
from maitred.model.flavors.huggingface.sentences import pooled
from maitred.model.flavors.huggingface.tasks import Plan
from maitred.model.flavors.huggingface.texts import Encoded, Padded, Texts
from maitred.model.flavors.probabilities import softmax
from maitred.model.flavors.torch.tensors import Tensors
from maitred.model.predictor import Context, Traits
from maitred.model.signature import Signature

if TYPE_CHECKING:
    import PIL.Image
    import torch

Floats = npt.NDArray[np.float32]
Objects = npt.NDArray[np.object_]

_FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Image formats that are decoded without running another program."""
_MAX_PIXELS: Final = 64 << 20
_MAX_SPAN: Final = 30
"""Tokens of an answer that is cut out of a text."""
WINDOW: Final = 128
"""Tokens that two windows over a long context share."""
MAX_CONTEXT: Final = 1 << 20
"""Characters of a context in which an answer is looked for."""
_OUTSIDE: Final = "O"


class Opened(NamedTuple):
    """A loaded checkpoint and what was read of its settings."""

    network: Any
    texts: Texts | None
    images: Any
    """The image processor; None for texts."""
    plan: Plan
    labels: tuple[str, ...]
    activation: str
    takes: frozenset[str]
    tensors: Tensors
    signature: Signature
    traits: Traits


class _Answers:
    """A loaded network for one task. One call at a time: the library's tokenizers are not for several threads."""

    def __init__(self, opened: Opened) -> None:
        self.signature = opened.signature
        self.traits = opened.traits
        self._opened = opened
        self._more = {"use_cache": False} if "use_cache" in opened.takes else {}

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Outputs by name."""
        raise NotImplementedError

    @property
    def _texts(self) -> Texts:
        assert self._opened.texts is not None  # made for every task about texts
        return self._opened.texts

    def _run(self, tensors: dict[str, Any]) -> Any:
        takes = self._opened.takes
        given = {name: tensor for name, tensor in tensors.items() if name in takes}
        return self._opened.network(**given, **self._more)

    def _runs(self, rows: Sequence[Encoded]) -> Iterator[tuple[Padded, Any]]:
        """The network's answers to the rows, some of them at a time."""
        import torch

        with torch.inference_mode():
            for padded in self._texts.padded(rows):
                yield padded, self._run(padded.tensors)

    def _logits(self, rows: Sequence[Encoded]) -> Floats:
        """One line of values per row."""
        values: Floats | None = None
        for padded, answer in self._runs(rows):
            part = _array(answer.logits)
            if values is None:
                values = np.empty((len(rows), *part.shape[1:]), np.float32)
            values[padded.places] = part
        assert values is not None  # `call` answers empty batches itself
        return values


class Classes(_Answers):
    """The label of a text (or pair of texts), with scores for all labels."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`label`, `score`, `scores`."""
        pairs = inputs["text_pair"].tolist() if "text_pair" in inputs else None
        logits = self._logits(self._texts.encode(inputs["text"].tolist(), pairs))
        return classes(logits, self._opened.labels, self._opened.activation)


class ZeroShot(_Answers):
    """Labels that nobody trained: each as a hypothesis that the text entails or not."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        options = opened.plan.options
        self._hypotheses = [options.hypothesis.replace("{}", label) for label in options.labels]
        names = [label.lower() for label in opened.labels]
        self._entails = next(at for at, name in enumerate(names) if name.startswith("entail"))
        self._against = next((at for at, name in enumerate(names) if name.startswith("contra")), 0)

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`label`, `score`, `scores`."""
        count = len(self._hypotheses)
        texts = [text for text in inputs["text"].tolist() for _ in range(count)]
        logits = self._logits(self._texts.encode(texts, self._hypotheses * len(inputs["text"])))
        if count == 1:
            both = softmax(logits[:, [self._against, self._entails]])
            return {"score": both[:, 1]}
        entails = logits[:, self._entails].reshape(-1, count)
        return classes(entails, self._opened.plan.options.labels, "softmax")


class Embedding(_Answers):
    """A vector for each text."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`embedding`. The parameter `prompt` names what is put before the texts."""
        pooling = self._opened.plan.pooling
        prompt = self._prompt(context.parameters)
        texts: list[str] = inputs["text"].tolist()
        if prompt:
            texts = [prompt + text for text in texts]
        if pooling.lower_case:
            texts = [text.lower() for text in texts]
        rows = self._texts.encode(texts)
        values: Floats | None = None
        for padded, answer in self._runs(rows):
            part = _array(pooled(answer.last_hidden_state, padded.mask, pooling))
            if values is None:
                values = np.empty((len(rows), part.shape[1]), np.float32)
            values[padded.places] = part
        return {"embedding": values}

    def _prompt(self, parameters: dict[str, Any]) -> str:
        pooling = self._opened.plan.pooling
        name = parameters.get("prompt")
        if name is None:
            return pooling.default_prompt
        if name not in pooling.prompts:
            raise InvalidInput(f"no prompt has that name; this model has {', '.join(pooling.prompts) or 'none'}")
        return pooling.prompts[name]


class Mask(_Answers):
    """The likeliest words for the one mask in each text."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`tokens` and `scores`, best first."""
        tokenizer, count = self._texts.tokenizer, self._opened.plan.options.top_k
        rows = self._texts.encode(inputs["text"].tolist())
        for row, encoded in enumerate(rows):
            if encoded.ids.count(tokenizer.mask_token_id) != 1:
                raise InvalidInput(f"row {row}: the text must hold {tokenizer.mask_token} once, within the limit")
        scores = np.empty((len(rows), count), np.float32)
        best = np.empty((len(rows), count), np.int64)
        for padded, answer in self._runs(rows):
            here = answer.logits[padded.tensors["input_ids"] == tokenizer.mask_token_id]
            values, places = here.float().softmax(-1).topk(count)
            scores[padded.places], best[padded.places] = _array(values), places.cpu().numpy()
        words = {token: tokenizer.decode([token]) for token in np.unique(best).tolist()}
        return {"tokens": objects([words[token] for token in best.reshape(-1).tolist()], best.shape), "scores": scores}


class Entities(_Answers):
    """The names in a text: neighbouring tokens of one kind, as JSON."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`entities`, a JSON list for each row, and `confidence`, that of its least certain entity."""
        texts = inputs["text"].tolist()
        rows = self._texts.encode(texts, offsets=True)
        found: list[str] = [""] * len(rows)
        confidence = np.empty(len(rows), np.float32)
        for padded, answer in self._runs(rows):
            likeliest = answer.logits.float().softmax(-1).max(-1)
            scores, kinds = _array(likeliest.values), likeliest.indices.cpu().numpy()
            filled = padded.mask.cpu().numpy().astype(bool)
            for at, row in enumerate(padded.places.tolist()):
                lines = self._entities(texts[row], rows[row], kinds[at][filled[at]], scores[at][filled[at]])
                found[row] = json.dumps([line for line, _ in lines], ensure_ascii=False)
                confidence[row] = min((score for _, score in lines), default=1.0)
        return {"entities": objects(found, (len(found),)), "confidence": confidence}

    def _entities(self, text: str, row: Encoded, kinds: Any, scores: Any) -> list[tuple[dict[str, Any], float]]:
        labels = self._opened.labels
        groups: list[tuple[str, int, int, list[float]]] = []
        previous = ""
        if row.source is None:
            return []
        spans = zip(row.source.offsets, row.source.special_tokens_mask, kinds.tolist(), scores.tolist(), strict=True)
        for (start, end), special, kind, score in spans:
            if special:
                continue
            begins, name = _tag(labels[kind])
            if groups and name == previous != _OUTSIDE and not begins:
                groups[-1] = (name, groups[-1][1], end, [*groups[-1][3], score])
            elif name != _OUTSIDE:
                groups.append((name, start, end, [score]))
            previous = name
        return [
            ({"label": name, "start": start, "end": end, "text": text[start:end]}, sum(each) / len(each))
            for name, start, end, each in groups
        ]


class Answer(_Answers):
    """The span of a context that answers a question; long contexts are read in windows that overlap."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`answer`, `score`, and the characters `start` and `end` of the answer in its context."""
        contexts: list[str] = inputs["context"].tolist()
        windows, owners = self._windows(inputs["question"].tolist(), contexts)
        best = [(0.0, 0, 0)] * len(contexts)
        for padded, answer in self._runs(windows):
            starts, ends = _array(answer.start_logits), _array(answer.end_logits)
            filled = padded.mask.cpu().numpy().astype(bool)
            for at, window in enumerate(padded.places.tolist()):
                found = _span(windows[window].source, starts[at][filled[at]], ends[at][filled[at]])
                best[owners[window]] = max(best[owners[window]], found)
        texts = [context[start:end] for context, (_, start, end) in zip(contexts, best, strict=True)]
        return {
            "answer": objects(texts, (len(texts),)),
            "score": np.array([score for score, _, _ in best], np.float32),
            "start": np.array([start for _, start, _ in best], np.int64),
            "end": np.array([end for _, _, end in best], np.int64),
        }

    def _windows(self, questions: list[str], contexts: list[str]) -> tuple[list[Encoded], list[int]]:
        windows: list[Encoded] = []
        owners: list[int] = []
        for row, (question, context) in enumerate(zip(questions, contexts, strict=True)):
            if len(context) > MAX_CONTEXT:
                raise InvalidInput(f"row {row}: the context has more than {MAX_CONTEXT} characters")
            for encoding in self._texts.windows(row, question, context):
                windows.append(encoding)
                owners.append(row)
        return windows, owners


class Generated(_Answers):
    """Text that goes on from each text, or answers it: always the likeliest next token.

    Each row runs alone: the likeliest token of two that are nearly as likely could change with the padding.
    """

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`generated`. The parameter `max_new_tokens` asks for fewer tokens than the option allows."""
        import torch

        count = self._count(context.parameters)
        texts = []
        with torch.inference_mode():
            for row in self._texts.encode(inputs["text"].tolist()):
                (padded,) = self._texts.padded([row])
                texts.append(self._generate(padded.tensors, count, context))
        return {"generated": objects(texts, (len(texts),))}

    def _generate(self, tensors: dict[str, Any], count: int, context: Context) -> str:
        import torch

        def cancelled(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((len(ids),), context.cancelled(), device=ids.device)

        takes = {name: tensor for name, tensor in tensors.items() if name in self._opened.takes}
        made = self._opened.network.generate(**takes, max_new_tokens=count, stopping_criteria=[cancelled])
        start = tensors["input_ids"].shape[1] if self._opened.plan.base == "text-generation" else 0
        return str(self._texts.tokenizer.decode(made[0, start:], skip_special_tokens=True))

    def _count(self, parameters: dict[str, Any]) -> int:
        most = self._opened.plan.options.max_new_tokens
        count = parameters.get("max_new_tokens", most)
        if type(count) is not int or not 1 <= count <= most:
            raise InvalidInput(f"the parameter max_new_tokens must be a whole number from 1 to {most}")
        return count


class ImageClasses(_Answers):
    """The label of an encoded image, with scores for all labels."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`label`, `score`, `scores`."""
        import torch

        opened = self._opened
        pictures = [_picture(row, data) for row, data in enumerate(inputs["image"].tolist())]
        made = opened.images(images=pictures, return_tensors="pt")
        pixels = made["pixel_values"].to(device=opened.tensors.device, dtype=opened.network.dtype)
        with torch.inference_mode():
            logits = _array(self._run({"pixel_values": pixels}).logits)
        return classes(logits, opened.labels, opened.activation)


class Raw(_Answers):
    """The network's own tensors."""

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """`logits` or `last_hidden_state`."""
        import torch

        opened = self._opened
        given = {name: opened.tensors.tensor(array.copy()) for name, array in inputs.items()}
        tensors = {
            name: tensor.to(opened.network.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in given.items()
        }
        with torch.inference_mode():
            answer = self._run(tensors)
        return {name: _array(getattr(answer, name)) for name in context.outputs or self.signature.outputs}


# --- from values to answers ---------------------------------------------------------------------------------------


def classes(logits: Floats, labels: tuple[str, ...], activation: str) -> dict[str, Any]:
    """`label`, `score` and `scores` of each row; the score alone for one class."""
    scores = softmax(logits) if activation == "softmax" else _sigmoid(logits) if activation == "sigmoid" else logits
    if len(labels) == 1:
        return {"score": scores[:, 0]}
    best = scores.argmax(axis=1)
    names = np.array(labels, object)[best]
    return {"label": names, "score": scores[np.arange(len(best)), best], "scores": scores}


def _sigmoid(values: Floats) -> Floats:
    small = np.exp(-np.abs(values))  # never of a large number, which would overflow
    made: Floats = np.where(values >= 0, 1 / (1 + small), small / (1 + small))
    return made


def objects(values: Sequence[str], shape: tuple[int, ...]) -> Objects:
    """Texts as an array."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _array(tensor: torch.Tensor) -> Floats:
    made: Floats = tensor.float().cpu().numpy()
    return made


def _tag(label: str) -> tuple[bool, str]:
    """Whether a name begins here, and its kind: `B-PER` -> true, `PER`."""
    head, dash, rest = label.partition("-")
    return (head == "B", rest) if dash and head in ("B", "I") else (False, label)


def _span(encoding: Any, starts: Floats, ends: Floats) -> tuple[float, int, int]:
    """The likeliest span inside a window's context: probability, first and last character."""
    inside = np.array([sequence == 1 for sequence in encoding.sequence_ids] if encoding is not None else [False])
    if not inside.any():
        return (0.0, 0, 0)
    first, last = (softmax(np.where(inside, values, -np.inf)) for values in (starts, ends))
    joint = np.triu(np.outer(first, last)) - np.triu(np.outer(first, last), _MAX_SPAN)
    start, end = np.unravel_index(int(joint.argmax()), joint.shape)
    return float(joint[start, end]), encoding.offsets[start][0], encoding.offsets[end][1]


def _picture(row: int, data: bytes) -> PIL.Image.Image:
    """A decoded image, upright and in three colours. Raises `InvalidInput` naming the row."""
    import PIL.Image
    import PIL.ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
            image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
            if image.width * image.height > _MAX_PIXELS:
                raise InvalidInput(f"row {row}: the image has more than {_MAX_PIXELS} pixels")
            return PIL.ImageOps.exif_transpose(image).convert("RGB")
    except InvalidInput:
        raise
    except Exception as error:  # a decoder may raise anything about hostile bytes
        raise InvalidInput(f"row {row}: this is no image that can be read ({type(error).__name__})") from error


ANSWERS: Final[dict[str, type[_Answers]]] = {
    "text-classification": Classes,
    "token-classification": Entities,
    "feature-extraction": Embedding,
    "fill-mask": Mask,
    "question-answering": Answer,
    "zero-shot-classification": ZeroShot,
    "text-generation": Generated,
    "text2text-generation": Generated,
    "image-classification": ImageClasses,
    "raw": Raw,
}
