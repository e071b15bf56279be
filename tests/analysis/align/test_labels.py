"""The hand-made labels are well formed, complete, and what their script derives from the recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.labels.make_qwen_labels import N_LAYERS, derive, read_calls, to_text

LABELS = Path(__file__).parents[2] / "support" / "labels" / "qwen15_h100_mi300.json"


@pytest.fixture(scope="module")
def labels() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(LABELS.read_text())
    return loaded


@pytest.fixture(scope="module")
def pair(shared: Path) -> tuple[Path, Path]:
    folder = shared / "traces" / "torch_infer_h100_mi300"
    return folder / "qwen1.5_0.5b_h100.json.gz", folder / "qwen1.5_0.5b_mi300.json.gz"


def test_each_call_stands_in_one_label_and_no_side_is_empty(labels: list[dict[str, Any]]) -> None:
    assert len({label["name"] for label in labels}) == len(labels) == 1029
    for side in "ab":
        assert all(label[side] for label in labels)
        calls = [(call["op"], call["ts_us"]) for label in labels for call in label[side]]
        assert len(set(calls)) == len(calls)


def test_layers_hold_the_same_computations(labels: list[dict[str, Any]]) -> None:
    names = [label["name"] for label in labels]
    layers = [[n.partition(" / ")[2] for n in names if n.startswith(f"layer {k} / ")] for k in range(N_LAYERS)]
    assert len(layers[0]) == 42
    assert all(layer == layers[0] for layer in layers)


@pytest.mark.parametrize(("side", "linked_ms"), [("a", 31.760), ("b", 29.743)])
def test_labels_cover_the_linked_kernel_time(
    labels: list[dict[str, Any]], pair: tuple[Path, Path], side: str, linked_ms: float
) -> None:
    labelled = {(call["op"], call["ts_us"]) for label in labels for call in label[side]}
    calls = read_calls(pair["ab".index(side)])
    total = sum(call.kernel_us for call in calls)
    covered = sum(call.kernel_us for call in calls if (call.op, str(call.ts)) in labelled)
    assert float(total) / 1000 == pytest.approx(linked_ms, abs=5e-4)
    assert covered >= total * 97 / 100


def test_script_derives_the_file(pair: tuple[Path, Path]) -> None:
    assert to_text(derive(*pair)) == LABELS.read_text()
