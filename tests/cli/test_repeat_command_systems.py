"""``magneton repeat --alone`` on unmodified programs of ONNX Runtime, JAX and TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from magneton.collectors.sensors.discover import POWERCAP_VARIABLE
from magneton.flows.traces import normalize

pytestmark = pytest.mark.systems

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "benchmarks" / "fakes"
GPU = {"uuid": "GPU-1", "mig": False, "idle_w": 100, "busy_w": 100, "update_ms": 20, "counter_ms": 10}
PROGRAMS = {
    "onnx": """
        import sys
        import numpy as np, onnx, onnxruntime
        from onnx import TensorProto, helper, numpy_helper
        weight = numpy_helper.from_array(np.arange(32, dtype=np.float32).reshape(8, 4), "w")
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "project"), helper.make_node("Tanh", ["h"], ["y"], "squash")]
        shape = lambda name, last: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, last])
        graph = helper.make_graph(nodes, "g", [shape("x", 8)], [shape("y", 4)], [weight])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        total = 0.0
        for step in range(int(sys.argv[1])):
            total += float(session.run(None, {"x": np.full((2, 8), 0.01 * step, np.float32)})[0].sum())
        print(f"total {total:.6f}")
    """,
    "jax": """
        import functools, sys
        import jax, jax.numpy as jnp
        @functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
        def step(x, w, power):
            return jnp.tanh(x @ w) ** power
        class Net:
            @jax.jit
            def shift(self_weight, x):
                return x + self_weight
        x = jnp.ones((4, 4))
        for _ in range(int(sys.argv[1])):
            x = Net.shift(jnp.float32(0.5), step(x, jnp.full((4, 4), 0.1), 2))
        print(f"total {float(x.sum()):.6f}")
    """,
    "tensorflow": """
        import sys
        import tensorflow as tf
        weight = tf.Variable(tf.fill([4, 4], 0.1))
        @tf.function
        def step(x):
            y = tf.tanh(tf.matmul(x, weight))
            weight.assign_add(tf.fill([4, 4], 0.001))
            return y + tf.reduce_sum(weight)
        x = tf.ones([2, 4])
        for _ in range(int(sys.argv[1])):
            x = step(x)
        print(f"total {float(tf.reduce_sum(x)):.6f}")
    """,
}
MODULES = {"onnx": "onnxruntime", "jax": "jax", "tensorflow": "tensorflow"}
# Not called as the systems are: a script's folder is where Python looks first.
SCRIPTS = {"onnx": "with_ort.py", "jax": "with_jax.py", "tensorflow": "with_tf.py"}
REGIONS = {"onnx": "MatMul", "jax": "dot_general", "tensorflow": "MatMul"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs, and a recording."""
    made = tmp_path_factory.mktemp("programs")
    for system, text in PROGRAMS.items():
        (made / SCRIPTS[system]).write_text(textwrap.dedent(text))
    normalize([ROOT / "examples" / "recordings" / "gpt2-hf"], made / "run")
    return made


def run(folder: Path, *words: str, script: str, steps: int) -> subprocess.CompletedProcess[str]:
    fakes = {
        "PYTHONPATH": os.pathsep.join([str(FAKES), *(p for p in sys.path if p)]),
        "MAGNETON_FAKE_NVML": json.dumps({"gpus": [GPU]}),
        "MAGNETON_FAKE_AMDSMI": json.dumps({"library": False}),
        POWERCAP_VARIABLE: str(folder / "none"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.run(
        [sys.executable, *words, script, str(steps)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | fakes,
        timeout=300,
    )


def magneton(folder: Path, *words: str, script: str, steps: int = 8) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "magneton.cli", "repeat", "run", *words, "--", sys.executable, script=script, steps=steps)


@pytest.fixture(params=list(PROGRAMS))
def system(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(MODULES[request.param]) is None:
        pytest.skip(f"{MODULES[request.param]} is not installed")
    return str(request.param)


def test_operations_of_a_program_are_replayed_and_it_computes_what_it_always_does(folder: Path, system: str) -> None:
    words = (
        "--regions",
        f"{system}:{REGIONS[system]},{system}:Nothing",
        "--alone",
        "--seconds",
        "0.3",
        "--rounds",
        "2",
    )
    done = magneton(folder, *words, "--json", script=SCRIPTS[system])
    assert done.returncode == 0, done.stderr
    plain = run(folder, script=SCRIPTS[system], steps=8)
    assert plain.stdout.strip() and plain.stdout.strip() in done.stderr, (plain.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    product, nothing = found["regions"]
    assert product["system"] == system and product["name"].split()[0] == REGIONS[system]
    assert product["refusal"] is None and product["calls_per_step"] == 1
    assert all(w["end_ns"] - w["start_ns"] >= 0.3e9 and w["steps"] > 5 for w in product["windows"])
    (energy,) = product["energies"]
    assert energy["simulated"] and energy["label"] == "replayed"
    # 100 W throughout.
    assert energy["value_j"] == pytest.approx(100 * product["time"]["value_s"], rel=0.1)
    assert nothing["refusal"]["code"] == "NotRepeatableError" and "has it" in nothing["refusal"]["reason"]
    assert MODULES[system] in found["versions"] and found["method"] == "alone"


def test_a_program_that_runs_too_seldom_is_told(folder: Path, system: str) -> None:
    done = magneton(folder, "--regions", f"{system}:{REGIONS[system]}", "--alone", script=SCRIPTS[system], steps=2)
    assert done.returncode == 2 and "fewer than 3 calls of one program" in done.stderr
