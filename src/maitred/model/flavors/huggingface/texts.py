"""Texts as a network takes them: cut to its limit, batched with texts of about their length, padded and masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from maitred.errors import InvalidInput
from maitred.model.flavors.torch.tensors import Tensors

if TYPE_CHECKING:
    import torch

Strategy = Literal["longest_first", "only_first", "only_second"]
Ints = npt.NDArray[np.int64]

_CHARACTERS: Final = 200
"""Characters of a text that are looked at, for each token that the network takes: a token has about four."""
_WORTH: Final = 256
"""Padding tokens saved that are worth a run of the network of their own."""
_MAX_ROWS: Final = 64
"""Of one run of the network, whatever the batch's rows have become (windows, hypotheses)."""


class Encoded(NamedTuple):
    """One text, or pair of texts, as tokens."""

    ids: list[int]
    types: list[int]
    source: Any = None
    """The tokenizer's own record, for offsets; None where nothing of the text is in the tokens."""


class Padded(NamedTuple):
    """Rows that run together."""

    places: Ints
    """Where they stand in the batch."""
    tensors: dict[str, torch.Tensor]
    mask: torch.Tensor


class Texts:
    """A tokenizer with its limits. `strategy`: which of two texts is cut; `window`: longer second texts become several
    rows that overlap by so many tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        limit: int,
        truncate: bool = True,
        buckets: tuple[int, ...] = (),
        takes: frozenset[str] = frozenset(),
        strategy: Strategy = "longest_first",
        window: int = 0,
        tensors: Tensors,
    ) -> None:
        """`takes`: the names of what the network's `forward` takes."""
        self.tokenizer = tokenizer
        self.limit = limit
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        self._truncate = truncate
        self._buckets = tuple(size for size in buckets if size < limit)
        self._strategy = strategy
        self._tensors = tensors
        self._types = "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in takes
        self._left = tokenizer.padding_side == "left"
        self._pad = tokenizer.pad_token_id
        known = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        self._nothing = [next((token for token in known if token is not None), 0)]
        side = tokenizer.truncation_side
        self._ends = side != "left"
        if self.backend is not None:
            self.backend.no_padding()
            if truncate:
                self.backend.enable_truncation(limit, stride=window, strategy=strategy, direction=side)
            else:
                self.backend.no_truncation()

    @property
    def can_pad(self) -> bool:
        """Whether rows of different lengths can share a run."""
        return self._pad is not None

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None, offsets: bool = False) -> list[Encoded]:
        """Tokens of each row. Raises `InvalidInput` naming a row that is too long, where texts are not cut."""
        firsts = self._cut(texts)
        seconds = self._cut(pairs) if pairs is not None else None
        rows = self._encoded(firsts, seconds, offsets)
        if not self._truncate:
            for row, encoded in enumerate(rows):
                self._check(row, len(encoded.ids))
        return [self._not_empty(row) for row in rows]

    def windows(self, row: int, text: str, pair: str) -> list[Encoded]:
        """The two as tokens, the second in as many windows as it takes. Raises `InvalidInput` for too long a first."""
        assert self.backend is not None  # whoever asks for windows needs offsets, and has seen to that
        try:
            whole = self.backend.encode(text, pair)
        except Exception as error:  # tokenizers' errors have no class of their own
            raise InvalidInput(f"row {row}: the question leaves no room in this model's {self.limit} tokens") from error
        parts = (whole, *whole.overflowing)
        return [self._not_empty(Encoded(part.ids, part.type_ids if self._types else [], part)) for part in parts]

    def padded(self, rows: Sequence[Encoded]) -> Iterator[Padded]:
        """The rows in runs of about equal length, so that one long text does not make all others long."""
        lengths = np.fromiter((len(row.ids) for row in rows), np.int64, len(rows))
        for index in _runs(lengths):
            yield self._padded(index, [rows[at] for at in index.tolist()])

    def _not_empty(self, row: Encoded) -> Encoded:
        """A network needs at least one token: for an empty text that of an end, where the tokenizer adds none."""
        return row if row.ids else Encoded(self._nothing, [0])

    # --- inside -------------------------------------------------------------------------------------------------

    def _cut(self, texts: Sequence[str]) -> list[str]:
        """No more characters than can matter: tokenizing megabytes to keep 512 tokens would take seconds."""
        most = self.limit * _CHARACTERS
        if max(map(len, texts), default=0) <= most:
            return list(texts)
        if not self._truncate:
            self._check(next(row for row, text in enumerate(texts) if len(text) > most), most)
        return [text[:most] if self._ends else text[-most:] for text in texts]

    def _check(self, row: int, length: int) -> None:
        if length > self.limit:
            raise InvalidInput(f"row {row}: the text has more than the {self.limit} tokens that this model takes")

    def _encoded(self, texts: list[str], pairs: list[str] | None, offsets: bool) -> list[Encoded]:
        if self.backend is None:
            return self._slowly(texts, pairs)
        rows = texts if pairs is None else list(zip(texts, pairs, strict=True))
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        wanted = self._types
        return [
            Encoded(found.ids, found.type_ids if wanted else [], found if offsets else None) for found in encode(rows)
        ]

    def _slowly(self, texts: list[str], pairs: list[str] | None) -> list[Encoded]:
        """By a tokenizer that is written in Python."""
        made = self.tokenizer(
            texts,
            pairs,
            truncation=self._strategy if self._truncate else False,
            max_length=self.limit if self._truncate else None,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=self._types,
            verbose=False,
        )
        types = made.get("token_type_ids") or [[] for _ in texts]
        return [Encoded(ids, kinds) for ids, kinds in zip(made["input_ids"], types, strict=True)]

    def _padded(self, index: Ints, rows: list[Encoded]) -> Padded:
        lengths = np.fromiter((len(row.ids) for row in rows), np.int64, len(rows))
        width = self._width(int(lengths.max()))
        places = np.arange(width)
        filled = places >= width - lengths[:, None] if self._left else places < lengths[:, None]
        tensors = {"input_ids": self._tensor(filled, (row.ids for row in rows), self._pad or 0)}
        if self._types:
            tensors["token_type_ids"] = self._tensor(filled, (row.types for row in rows), 0)
        mask = self._tensors.tensor(filled.astype(np.int64))
        tensors["attention_mask"] = mask
        return Padded(index, tensors, mask)

    def _tensor(self, filled: npt.NDArray[np.bool_], rows: Iterator[list[int]], pad: int) -> torch.Tensor:
        values = np.full(filled.shape, pad, np.int64)
        values[filled] = np.fromiter(chain.from_iterable(rows), np.int64, int(filled.sum()))
        return self._tensors.tensor(values)

    def _width(self, longest: int) -> int:
        return next((size for size in self._buckets if size >= longest), longest if not self._buckets else self.limit)


def _runs(lengths: Ints) -> Iterator[Ints]:
    """Rows by length, parted where that saves more padding than a run of the network costs."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), _MAX_ROWS):
        yield from _parted(order[start : start + _MAX_ROWS], lengths)


def _parted(order: Ints, lengths: Ints) -> Iterator[Ints]:
    ordered = lengths[order]
    saved = np.arange(1, len(order)) * (ordered[-1] - ordered[:-1])
    at = int(saved.argmax()) + 1 if len(saved) else 0
    if at and saved[at - 1] > _WORTH:
        yield from _parted(order[:at], lengths)
        yield from _parted(order[at:], lengths)
    else:
        yield order
