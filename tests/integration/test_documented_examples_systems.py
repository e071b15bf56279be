"""The examples of the docs that need ONNX Runtime run as printed, typed the way a user would type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.documented import ONNX, commands, furnish, programs, saved, typed

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'magneton[onnx]')")

pytestmark = pytest.mark.systems

MODEL = """
import numpy as np
import onnx
from onnx import TensorProto, helper

shape = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 16])
nodes = [
    helper.make_node("MatMul", ["q", "k"], ["scores"], "/attn/MatMul"),
    helper.make_node("Softmax", ["scores"], ["y"], "/attn/Softmax"),
]
graph = helper.make_graph(nodes, "attention", [shape("q"), shape("k")], [shape("y")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
feeds = {name: np.ones((16, 16), np.float32) for name in ("q", "k")}
"""
SERVE = f"""{MODEL}
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
for _ in range(8):
    session.run(None, feeds)
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A directory with a recording and a program that answers requests."""
    folder = furnish(tmp_path)
    (folder / "serve.py").write_text(SERVE)
    return folder


@pytest.mark.parametrize("line", [line for _, line in commands(ONNX)])
def test_repeat_runs_as_printed(line: str, server: Path) -> None:
    done = typed(line.replace("magneton repeat", "magneton repeat --json", 1), server)
    assert done.returncode == 0, done.stderr
    regions = json.loads(done.stdout)["regions"]
    assert [region["name"].split()[0] for region in regions] == ["MatMul", "Softmax"]
    assert all(region["refusal"] is None and region["time"]["value_s"] > 0 for region in regions)


@pytest.mark.parametrize("text", [text for _, text in programs(ONNX)])
def test_python_runs_as_printed(text: str, server: Path) -> None:
    shown = "\nimport json\nprint(json.dumps([[call.name, call.time is not None] for call in found.calls]))\n"
    done = saved(text + shown, server, MODEL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [["MatMul", True]]
