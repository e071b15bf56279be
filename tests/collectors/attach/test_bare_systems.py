"""Programs of JAX and of ONNX Runtime whose environments hold nothing else give a capture of energy with steps."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.bare_environment import bare_environment

from magneton.flows.api import normalize
from magneton.schemas.manifest import read_manifest
from magneton.schemas.tables.parquet import read_table

pytestmark = pytest.mark.systems

ABSENT = """
    import importlib.util
    for name in ("pyarrow", "msgspec", "duckdb", "torch"):
        assert importlib.util.find_spec(name) is None, name
"""
JAX = """
    import jax, jax.numpy as jnp
    @jax.jit
    def step(x):
        return jnp.tanh(x @ x.T).sum()
    for i in range(9):
        y = step(jnp.ones((8, 8)) * i)
    print(float(y))
"""
ORT = """
    import numpy as np, onnxruntime
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    for i in range(9):
        y = session.run(None, {"x": np.ones((4, 4), np.float32)})
    print(y[0].sum())
"""


@pytest.mark.parametrize(("framework", "text"), [("jax", JAX), ("onnxruntime", ORT)])
def test_energy_of_other_frameworks(tmp_path: Path, framework: str, text: str) -> None:
    if framework == "onnxruntime":
        import onnx
        from onnx import TensorProto, helper

        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(tmp_path / "model.onnx"))
    python = bare_environment(tmp_path / "env", framework)
    (tmp_path / "program.py").write_text(textwrap.dedent(ABSENT) + textwrap.dedent(text))
    command = [sys.executable, "-m", "magneton.cli", "record", "-o", "r", "--capture", "energy", "--", str(python)]
    done = subprocess.run([*command, "program.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(tmp_path / "r")
    assert (manifest.system.name, manifest.incomplete) == (framework, False)
    assert any("calls of a compiled program" in note for note in manifest.notes)
    normalize([tmp_path / "r"], tmp_path / "n")
    assert read_table(tmp_path / "n" / "tables" / "steps.parquet", "steps").num_rows == 5

    command[command.index("energy")] = "profile"
    command[command.index("r")] = "p"
    done = subprocess.run([*command, "program.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert f"there is no capture of profile of programs of {framework}" in done.stderr
    assert not (tmp_path / "p").exists()
