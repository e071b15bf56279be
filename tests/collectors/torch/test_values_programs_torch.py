"""The values recorder around whole programs: training, traces left behind, places in the code, the second input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from tests.support.value_capture import Seen, randn, seen  # noqa: E402

from magneton.collectors import Workload, record  # noqa: E402
from magneton.collectors.torch.values_capture import capture_values, current, mark, perturbed, record_values  # noqa: E402
from magneton.flows.pairs import DiffSettings, compare  # noqa: E402

# -- training


def training() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def test_a_training_step_has_its_backward_and_its_update() -> None:
    model, _, step = training()
    capture = record_values(step, (randn(5, 8), randn(5, 4, seed=1)), parameters=list(model.parameters()))
    got = Seen(capture)
    assert "gelu_backward" in got.names
    for op in got.ops:
        assert ("backward" in op.flags) == (op.name.endswith("_backward") or "backward" in op.flags)
    backward = [op for op in got.ops if "backward" in op.flags]
    optimizer = [op for op in got.ops if "optimizer" in op.flags]
    assert {"gelu_backward", "mse_loss_backward", "mm"} <= {op.name for op in backward}
    assert {"addcdiv_", "lerp_"} <= {op.name for op in optimizer}
    assert not [op for op in got.ops if {"backward", "optimizer"} <= op.flags]
    assert "move" not in got.all("addcdiv_")[0].flags
    # Gradients belong to the module of their forward operator.
    (gelu,) = got.all("gelu_backward")
    assert got.modules[gelu.row["module_id"]].endswith("GELU_0")
    assert got.ops[gelu.row["forward_op_id"]].name == "gelu"
    # The update reads the gradient that backward made, and the parameter has a new value.
    updated = [got.tensors[op.writes[0]] for op in got.all("addcdiv_")]
    assert all(not t["constant"] for t in updated)
    assert {t["version"] for t in updated} == {2}, "decay, then update"
    gradients = {w for op in backward for w in op.writes}
    assert any(gradients & set(op.reads) for op in optimizer)


def test_training_is_not_changed_by_recording() -> None:
    results = []
    for recorded in (False, True):
        model, _, step = training()
        x, y = randn(5, 8), randn(5, 4, seed=1)
        for _ in range(3):
            loss = record_values(step, (x, y), parameters=list(model.parameters())).outputs if recorded else step(x, y)
        results.append([loss.detach(), *(p.detach() for p in model.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


# -- recording leaves no trace


def test_results_are_bitwise_those_of_a_run_that_is_not_recorded() -> None:
    def program(x: Any) -> Any:
        y = torch.nn.functional.dropout(x, 0.3) @ torch.rand(16, 16)
        y[2:5].mul_(3)
        return y.softmax(-1), torch.randn(4), y.half().sum()

    torch.manual_seed(3)
    plain = program(randn(8, 16))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    recorded = record_values(program, (randn(8, 16),)).outputs
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(3)
    again = record_values(program, (randn(8, 16),), second_inputs=(randn(8, 16, seed=5),)).outputs
    assert torch.equal(torch.get_rng_state(), after)
    for one, two, three in zip(plain, recorded, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_no_hooks_stay_behind() -> None:
    call = torch.nn.Module.__call__
    linear = torch.nn.Linear(4, 4)
    stance = torch._dynamo.eval_frame._stance.stance
    record_values(linear, (randn(2, 4),))
    with pytest.raises(ZeroDivisionError):
        record_values(lambda x: linear(x) / (1 // 0), (randn(2, 4),))
    assert torch.nn.Module.__call__ is call
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._dynamo.eval_frame._stance.stance == stance
    assert current() is None
    assert not linear._forward_hooks
    assert not linear._forward_pre_hooks


def test_a_program_that_fails_leaves_what_was_recorded() -> None:
    def program(x: Any) -> Any:
        x * 2
        raise KeyError("secret")

    x = randn(4, 4)
    capture = capture_values(lambda: program(x), inputs=(x,))
    assert isinstance(capture.error, KeyError)
    assert Seen(capture).names == ["mul"]
    with pytest.raises(KeyError):
        record_values(program, (x,))


# -- places


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.act = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return x + self.act(self.inner(x))


def test_modules_are_named_by_class_and_by_attribute() -> None:
    model = torch.nn.Sequential(Block(), Block())
    with torch.no_grad():
        capture = record_values(model, (randn(2, 8),))
    got = Seen(capture)
    products = got.all("addmm")
    assert [got.modules[op.row["module_id"]] for op in products] == [
        "Sequential_0/Block_0/Linear_0",
        "Sequential_0/Block_1/Linear_1",
    ]
    assert [json.loads(op.row["attributes"])["module_path"] for op in products] == ["0.inner", "1.inner"]
    assert [json.loads(op.row["attributes"])["overload"] for op in got.all("add")] == ["Tensor", "Tensor"]
    assert capture.boundaries["1.act"] == [tuple(got.all("relu")[1].writes)]
    assert capture.boundaries[""] == [tuple(got.all("add")[1].writes)]
    assert capture.modules.column("n_calls").to_pylist() == [1] * 7


def test_frames_are_the_programs_own_lines() -> None:
    def helper(x: Any) -> Any:
        return x * 2

    def program(x: Any) -> Any:
        return helper(x) + helper(x)

    got = seen(program, randn(2, 2))
    first, second = got.all("mul")
    inner = got.frames[first.row["frame_id"]]
    assert (inner["file"], inner["function"]) == ("tests/collectors/torch/test_values_programs_torch.py", "helper")
    outer = got.frames[inner["parent_id"]]
    assert outer["function"] == "program"
    assert got.frames[second.row["frame_id"]]["parent_id"] == inner["parent_id"], "one line, called twice on one line"
    assert not any("magneton/collectors" in f["file"] or f["file"].startswith("torch/") for f in got.frames.values())


def test_marks_and_ids_while_recording() -> None:
    ids = []

    def program(x: Any) -> Any:
        y = mark("product", x * 2)
        recorder = current()
        assert recorder is not None
        ids.append(recorder.tensor_id(y.view(-1)))
        return y + 1

    capture = record_values(program, (randn(4, 4),))
    made = Seen(capture).one("mul").writes[0]
    assert capture.marks == [("product", made)]
    assert ids == [made]
    assert mark("nobody listens", 3) == 3


def test_tables_have_the_columns_and_keys_of_a_run() -> None:
    from magneton.schemas.run_tables import RUN_TABLES

    capture = record_values(lambda x: x * 2, (randn(4, 4),))
    for name, table in capture.tables.items():
        assert table.column_names == RUN_TABLES[name].column_names()
        assert table.schema.types == RUN_TABLES[name].arrow_schema().types
        assert set(table.column("capture").to_pylist()) <= {"values"}
        assert set(table.column("input_id").to_pylist()) <= {"0"}
    assert capture.ops.column("ts_ns").null_count == capture.ops.num_rows
    (row,) = capture.ops.to_pylist()
    assert (row["name"], row["input_dims"], row["input_types"]) == ("aten::mul", "[[4,4],[]]", '["float","Scalar"]')


# -- second input


def test_a_second_input_gives_the_same_operators_and_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    x = randn(16, 8)
    capture = record_values(model, (x,), second_inputs=perturbed((x,)))
    assert capture.second is not None
    first, second = Seen(capture), Seen(capture.second)
    assert [(op.name, op.reads, op.writes) for op in first.ops] == [(op.name, op.reads, op.writes) for op in second.ops]
    assert set(capture.second.ops.column("input_id").to_pylist()) == {"1"}
    made = first.one("addmm").writes[0]
    assert not np.allclose(first.tensors[made]["quantiles"], second.tensors[made]["quantiles"])
    mask = first.one("bernoulli_").writes[0]
    assert first.tensors[mask]["mean"] == second.tensors[mask]["mean"], "what is drawn at random is drawn alike"


def test_state_is_put_back_before_the_second_input() -> None:
    model, _, step = training()
    x, y = randn(5, 8), randn(5, 4, seed=1)
    capture = record_values(step, (x, y), parameters=list(model.parameters()), second_inputs=(x, y))
    assert capture.second is not None
    first, second = Seen(capture), Seen(capture.second)
    weights = [t["mean"] for t in first.tensors.values() if t["role"] == "parameter"]
    assert weights == [t["mean"] for t in second.tensors.values() if t["role"] == "parameter"]


@pytest.mark.parametrize("span", [3, 7, 14, 49, 50256])
def test_perturbed_integers_all_move_and_stay_as_many(span: int) -> None:
    ids = torch.cat([torch.arange(span + 1), torch.tensor([0])]).reshape(1, -1)
    found = perturbed(ids)
    assert torch.equal(found == span, ids == span)
    assert (found != ids).equal(ids != span)
    assert len(found.unique()) == span + 1
    assert (found.min(), found.max()) == (0, span)


def test_perturbed_inputs_are_of_the_same_kind() -> None:
    ids = torch.tensor([[5, 9, 3, 50], [7, 50, 50, 50]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    positions = torch.arange(4).expand(2, 4)
    state = torch.get_rng_state()
    x = randn(64, 64) * 3 + 5
    given = {"ids": ids, "mask": mask, "positions": positions, "x": x, "same": x, "flag": True, "causal": mask.bool()}
    found = perturbed(given)
    assert torch.equal(torch.get_rng_state(), state)
    assert (found["ids"] == 50).equal(ids == 50), "the end mark stays where it is"
    assert not torch.equal(found["ids"], ids)
    assert found["ids"].min() >= 3
    assert found["ids"].max() == 50
    assert torch.equal(found["mask"], mask)
    assert torch.equal(found["positions"], positions)
    assert torch.equal(found["causal"], mask.bool())
    assert found["same"] is found["x"]
    assert found["flag"] is True
    assert float(found["x"].mean()) == pytest.approx(5, abs=0.2)
    assert float(found["x"].std()) == pytest.approx(3, abs=0.2)
    assert torch.corrcoef(torch.stack([found["x"].flatten(), x.flatten()]))[0, 1].abs() < 0.1
    assert torch.equal(perturbed(given)["x"], found["x"]), "the same seed draws the same"
    assert not torch.equal(perturbed(given, seed=2)["x"], found["x"])
    assert torch.equal(given["x"], randn(64, 64) * 3 + 5), "the given inputs are left alone"


def test_a_program_is_the_whole_of_itself(tmp_path: Path) -> None:
    """Three operators of a third each: each is one call, whatever it does inside (a bias is copied before a product)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
    with torch.no_grad(), record(tmp_path / "r", captures=("profile", "values"), workload=Workload(steps=3)) as rec:
        rec.run(model, (torch.randn(16, 64),))
    document = compare(tmp_path / "r", tmp_path / "r", tmp_path / "out", DiffSettings()).document
    assert document.coverage.a == document.coverage.b == 1.0
    assert document.findings == []
