"""Notes on operators: what is overwritten is defined, and a handle is no data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from magneton.collectors.systems.protocol import OperatorNote  # noqa: E402
from magneton.collectors.torch import operators  # noqa: E402
from magneton.collectors.torch.values_capture import record_values  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def attend() -> Any:
    library = torch.library.Library("nightjar_notes", "DEF")
    library.define("attend(Tensor x, Tensor(a!) out, Tensor handle) -> ()")

    def run(x: Any, out: Any, handle: Any) -> None:
        out.copy_(x * 2)

    library.impl("attend", run, "CPU")
    yield torch.ops.nightjar_notes.attend
    library._destroy()


def program(attend: Any) -> Any:
    def run(x: Any) -> Any:
        out = torch.empty_like(x)
        attend(x, out, torch.zeros((), dtype=torch.int64))
        return out + 1

    return run


@pytest.mark.parametrize("known", [True, False])
def test_memory_that_a_noted_operator_fills(attend: Any, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "nightjar_notes::attend"
    note = OperatorNote(name, overwrites=("out",), handles=("handle",))
    monkeypatch.setattr(operators, "_notes", lambda: {name: note} if known else {})
    capture = record_values(program(attend), (torch.arange(32.0),))
    ops = {o["op_id"]: o["name"] for o in capture.ops.to_pylist()}
    tensors = {t["tensor_id"]: t for t in capture.tensors.to_pylist()}
    uses = [u for u in capture.uses.to_pylist() if ops[u["op_id"]] == name]
    read = [u["position"] for u in uses if u["direction"] == "input"]
    written = [tensors[u["tensor_id"]] for u in uses if u["direction"] == "output"]
    assert len(written) == 1
    if known:
        assert read == [0]
        assert written[0]["mean"] == 31.0 and written[0]["why_no_values"] is None
    else:
        assert read == [0, 1, 2]
        assert written[0]["why_no_values"] is not None
