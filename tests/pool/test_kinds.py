"""Where a model runs when nobody has said so: every fact that speaks for a process, and what speaks for the server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maitred.model.description import Description, Timing
from maitred.model.predictor import Traits
from maitred.model.signature import Signature
from maitred.pool.kinds import BACK_SECONDS, INLINE_SECONDS, STALL_SECONDS, Facts, Overstays, choose, facts_of, varies

US = 1e-6
QUICK = (Timing(1, 9 * US, 12 * US), Timing(64, 31 * US, 48 * US))
FIT = Facts(flavor="onnx", native=True, timings=QUICK)


def test_a_quick_native_model_runs_in_the_server_and_its_reason_names_what_was_measured() -> None:
    choice = choose(FIT)
    assert choice.kind == "inline"
    assert str(choice) == (
        "runs in the server itself: 9.0 us for 1 row and 31 us for 64 rows: within the limit of 50 us"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"native": False, "flavor": "python"}, "flavor python may run code that came with the model"),
        ({"native": False, "trusted": True, "flavor": "sklearn"}, "code or a pickle, which somebody had to allow"),
        ({"trusted": True}, "which somebody had to allow"),
        ({"copies": 2}, "2 copies were asked for"),
        ({"device": "cuda:0"}, "its device is cuda:0"),
        ({"side_effects": True}, "it has side effects"),
        ({"slots": 4}, "several calls at once"),
        ({"varies": "input text is str"}, "depends on what it is asked: input text is str"),
        ({"timings": ()}, "it could not be measured"),
        (
            {"timings": (QUICK[0], Timing(64, 180 * US, 200 * US))},
            "180 us for 64 rows, over the limit of 50 us for the server itself",
        ),
        ({"timings": (Timing(1, 0.02, 0.03),)}, "20 ms for 1 row, over the limit of 50 us"),
        ({"timings": (QUICK[0], Timing(64, 31 * US, 51 * US))}, "51 us for 64 rows at worst (31 us median)"),
        ({"timings": (Timing(1, 30 * US, 90 * US), QUICK[1])}, "90 us for 1 row at worst (30 us median)"),
    ],
    ids=str,
)
def test_whatever_speaks_for_a_process_decides(changes: dict[str, Any], why: str) -> None:
    choice = choose(msgspec.structs.replace(FIT, **changes))
    assert choice.kind == "process"
    assert why in choice.why
    assert str(choice).startswith("runs in a process of its own: ")


def test_the_bound_itself_is_still_quick() -> None:
    edge = (Timing(1, INLINE_SECONDS, INLINE_SECONDS), Timing(64, INLINE_SECONDS, INLINE_SECONDS))
    assert choose(msgspec.structs.replace(FIT, timings=edge)).kind == "inline"


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ({"x": "float32[n, 4]"}, {"y": "float32[n]"}, ""),
        ({"x": "float32[n, 4]", "scale": "float32[3]"}, {"y": "float32[n]"}, ""),
        ({"x": "float32[4]"}, {"y": "float32[2]"}, ""),
        ({"x": "float32[n]"}, {"y": "float32[m]"}, "n of input x may be any size"),
        ({"x": "float32[n, seq]"}, {"y": "float32[n]"}, "seq of input x may be any size"),
        ({"x": "float32[n, seq] pad=0 buckets=[16, 32]"}, {"y": "float32[n]"}, "seq of input x may be any size"),
        ({"x": "float32[n]", "city": "str[n]"}, {"y": "float32[n]"}, "input city is str"),
        ({"image": "bytes[n]"}, {"y": "float32[n]"}, "input image is bytes"),
    ],
    ids=str,
)
def test_sizes_that_callers_choose_are_found(inputs: Any, outputs: Any, said: str) -> None:
    assert varies(Signature(inputs, outputs)) == said


def test_the_facts_are_those_of_the_description() -> None:
    signature = Signature({"x": "float32[n, 4]"}, {"y": "float32[n]"})
    plain = Description(name="m", flavor="onnx", signature=signature, native=True, timings=QUICK)
    assert facts_of(Description.decode(plain.encode()), 1, "cpu") == FIT
    told = msgspec.structs.replace(
        plain, trust="me: mine", traits=Traits(side_effects=True, asynchronous=True), native=False
    )
    facts = facts_of(told, 3, "cuda:1")
    assert (facts.trusted, facts.native, facts.side_effects, facts.copies, facts.device) == (
        True, False, True, 3, "cuda:1",
    )  # fmt: skip
    assert facts.slots > 1, "an asynchronous model may be in several calls"


QUICKLY, SLOWLY, STALLED = BACK_SECONDS, BACK_SECONDS * 1.5, STALL_SECONDS * 2


def fed(*seconds: float) -> list[bool]:
    watch = Overstays()
    return [watch.ran(each) for each in seconds]


def test_a_model_that_is_slow_in_most_batches_has_overstayed_once() -> None:
    watch = Overstays()
    told = [watch.ran(SLOWLY) for _ in range(200)]
    assert told.index(True) == 32
    assert told.count(True) == 1
    assert watch.reason == "it took over 200 us a batch in the server, 300 us at worst"


def test_a_few_stalls_are_as_bad() -> None:
    told = fed(*[QUICKLY, STALLED] * 10)
    assert told.index(True) == 9, "the fifth of them"


@pytest.mark.parametrize(
    "seconds",
    [
        [QUICKLY] * 1000,
        [QUICKLY, SLOWLY] * 500,
        [STALLED, *[QUICKLY] * 63] * 20,
        [*[STALLED] * 4, *[QUICKLY] * 60] * 20,
        [*[SLOWLY] * 32, *[QUICKLY] * 32] * 20,
    ],
    ids=["quick", "every other", "a hiccup", "four hiccups", "half"],
)
def test_hiccups_move_nobody(seconds: list[float]) -> None:
    assert not any(fed(*seconds))
