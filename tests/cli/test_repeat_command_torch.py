"""``magneton repeat``: unmodified programs with operators repeated in place, with a stand-in for NVML and without a sensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magneton.schemas.documents.repeat import RepeatDocument

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'magneton[torch]')")

pytestmark = pytest.mark.torch

from magneton.cli.commands.repeat import show  # noqa: E402
from magneton.collectors.replay.torch import NotRepeatableError, repeat_in_place  # noqa: E402
from magneton.collectors.sensors.rapl import POWERCAP_VARIABLE  # noqa: E402

FAKES = Path(__file__).resolve().parents[2] / "benchmarks" / "fakes"
GPU = {"uuid": "GPU-1", "mig": False, "idle_w": 100, "busy_w": 100, "update_ms": 20, "counter_ms": 10}
PROGRAM = """
    import sys, torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(128, 64)
    ).train()
    total = 0.0
    with torch.no_grad():
        for step in range(int(sys.argv[1])):
            x = torch.ones(16 + (step % 2 if "unlike" in sys.argv else 0), 64)
            if "seldom" in sys.argv and step % 3:
                torch.nn.Identity()(x)
                continue
            total += net(x).sum().item()
            if "fail" in sys.argv and step == 3:
                sys.exit(7)
    print(f"total {total:.6f}")
"""
TRAINING = """
    import torch
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(400):
        optimizer.zero_grad()
        net(torch.ones(8, 32)).square().mean().backward()
        optimizer.step()
"""
Call = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--seconds", "0.05", "--rounds", "2", "--copies", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both programs, and a recording of the first."""
    made = tmp_path_factory.mktemp("programs")
    (made / "program.py").write_text(textwrap.dedent(PROGRAM))
    (made / "training.py").write_text(textwrap.dedent(TRAINING))
    done = magneton(made, "record", "-o", "run", "--capture", "profile", args=("9",))
    assert done.returncode == 0, done.stderr
    return made


def magneton(
    folder: Path, *words: str, script: str = "program.py", args: tuple[str, ...] = ("3000",), gpus: Any = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command line on a script, on a machine whose only sensors are those of ``gpus``."""
    fakes = {
        "PYTHONPATH": os.pathsep.join([str(FAKES), *(p for p in sys.path if p)]),
        "MAGNETON_FAKE_NVML": json.dumps({"gpus": list(gpus)} if gpus else {"init": "LIBRARY_NOT_FOUND"}),
        "MAGNETON_FAKE_AMDSMI": json.dumps({"library": False}),
        POWERCAP_VARIABLE: str(folder / "none"),
    }
    return subprocess.run(
        [sys.executable, "-m", "magneton.cli", *words, "--", sys.executable, script, *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | fakes,
        timeout=300,
    )


@pytest.fixture
def call(folder: Path) -> Call:
    """Run the command line in the folder."""

    def start(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return magneton(folder, *words, **options)

    return start


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_without_a_sensor_there_is_time_and_no_energy(call: Call, folder: Path) -> None:
    done = call("repeat", "run", "--regions", "aten::addmm,Sequential_0/GELU_0", *QUICK, "--json", "-o", "o.json")
    found = document(done)
    assert json.loads((folder / "o.json").read_text()) == found
    addmm, gelu = found["regions"]
    assert (addmm["kind"], addmm["repeated"]) == ("operator", {"aten::addmm": 2})
    assert (gelu["kind"], gelu["repeated"]) == ("module", {"aten::gelu": 1})
    for region in (addmm, gelu):
        assert region["refusal"] is None and "no sensor" in region["times_because"]
        r = region["times"]
        assert [w["times"] for w in region["windows"]] == [r, 1, 1, r]
        # Windows of 50 ms are noisy where other work runs beside them.
        assert region["time"]["high_s_per_call"] > 0
        (energy,) = region["energies"]
        assert energy["value_j"] is None and energy["label"] is None
        assert energy["refusal"] == {
            "code": "InsufficientPowerDataError",
            "reason": "no sensor, so the energy is unknown",
        }
    assert not found["simulated"]


def test_the_program_computes_what_it_always_does(call: Call, folder: Path) -> None:
    done = call("repeat", "run", "--regions", "aten::addmm", "--times", "5", *QUICK)
    assert done.returncode == 0, done.stderr
    plain = subprocess.run([sys.executable, "program.py", "3000"], capture_output=True, text=True, cwd=folder)
    assert done.stdout.splitlines()[0] == plain.stdout.strip()
    assert "no sensor, so the energy is unknown" in done.stdout and "simulated" not in done.stdout


def test_with_a_stand_in_for_nvml_energies_are_replayed_and_simulated(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("repeat", "run", "--regions", "aten::addmm", "--times", "20", "--seconds", "0.3", "--rounds", "2")
    found = document(call(*words, "--json", args=("4000",), gpus=[GPU]))
    (region,) = found["regions"]
    (energy,) = region["energies"]
    assert (energy["device_id"], energy["field"], energy["label"]) == ("GPU-1", "energy_counter", "replayed")
    assert energy["simulated"] and found["simulated"] and energy["refusal"] is None
    assert {"clock_sm", "clock_memory", "temperature", "power_limit"} <= set(energy["compared"])
    # 100 W throughout: joules are a hundred times the seconds.
    assert energy["value_j"] == pytest.approx(100 * region["time"]["value_s"], rel=0.1)
    assert energy["low_j"] < energy["value_j"] < energy["high_j"]
    show(msgspec.convert(found, RepeatDocument))
    shown = capsys.readouterr().out
    assert "replayed, simulated" in shown and "they are simulated" in shown


def test_a_region_that_runs_alone_needs_one_step_and_changes_nothing(call: Call, folder: Path) -> None:
    words = ("repeat", "run", "--regions", "aten::addmm,Sequential_0/GELU_0,aten::bernoulli_", "--alone")
    quick = ("--seconds", "0.3", "--rounds", "2", "--json")
    done = call(*words, *quick, args=("8",), gpus=[GPU])
    found = document(done)
    plain = subprocess.run([sys.executable, "program.py", "8"], capture_output=True, text=True, cwd=folder)
    assert plain.stdout.strip() in done.stderr
    addmm, gelu, random = found["regions"]
    assert found["method"] == "alone" and found["simulated"]
    assert (addmm["calls_per_step"], gelu["calls_per_step"], addmm["times"]) == (2, 1, 1)
    for region in (addmm, gelu):
        assert region["refusal"] is None and [w["times"] for w in region["windows"]] == [1, 1]
        for window in region["windows"]:
            assert window["end_ns"] - window["start_ns"] >= 0.3e9 and window["iterations"] > 10
        (energy,) = region["energies"]
        assert energy["refusal"] is None and energy["simulated"] and energy["label"] == "replayed"
        # 100 W throughout.
        assert energy["value_j"] == pytest.approx(100 * region["time"]["value_s"], rel=0.1)
    assert addmm["windows"][1]["end_ns"] <= gelu["windows"][0]["start_ns"]
    assert random["refusal"]["code"] == "NotRepeatableError" and random["windows"] == []
    done = call(*words, "--times", "3")
    assert done.returncode == 2 and "not repeated in place" in done.stderr


def test_a_region_that_runs_alone_may_be_in_some_steps_only(call: Call) -> None:
    words = ("repeat", "run", "--regions", "aten::linear,aten::addmm,Sequential_0/GELU_0", "--alone", *QUICK, "--json")
    found = document(call(*words, args=("20", "seldom")))
    regions = {region["name"]: region for region in found["regions"]}
    assert list(regions) == ["aten::linear", "aten::addmm", "Sequential_0/GELU_0"]
    for name in ("aten::addmm", "Sequential_0/GELU_0"):
        assert regions[name]["refusal"] is None and len(regions[name]["windows"]) == 2
    assert "made of other operators" in regions["aten::linear"]["refusal"]["reason"]


def test_what_cannot_be_repeated_is_refused(call: Call) -> None:
    words = ("repeat", "run", "--regions", "aten::bernoulli_,aten::linear,aten::gelu", "--times", "3", *QUICK, "--json")
    found = document(call(*words))
    random, composite, gelu = found["regions"]
    assert random["refusal"]["code"] == composite["refusal"]["code"] == "NotRepeatableError"
    assert "writes to its arguments" in random["refusal"]["reason"]
    assert "made of other operators" in composite["refusal"]["reason"]
    assert random["time"] is None and random["energies"] == [] and gelu["time"] is not None


def test_steps_that_are_not_alike_are_refused(call: Call) -> None:
    found = document(call("repeat", "run", "--regions", "aten::addmm", *QUICK, "--json", args=("500", "unlike")))
    (region,) = found["regions"]
    assert region["refusal"]["code"] == "NotRepeatableError" and "not alike" in region["refusal"]["reason"]
    assert region["time"] is None and region["windows"] == []


def test_a_program_that_ends_too_early_is_told(call: Call) -> None:
    words = ("repeat", "run", "--regions", "aten::addmm,aten::gelu", "--seconds", "30", "--json")
    found = document(call(*words, args=("50",)))
    addmm, gelu = found["regions"]
    assert addmm["refusal"]["code"] == gelu["refusal"]["code"] == "InsufficientRepeatsError"
    assert "0 windows repeat" in addmm["refusal"]["reason"] and "before its turn" in gelu["refusal"]["reason"]
    done = call("repeat", "run", "--regions", "aten::addmm", args=("1",))
    assert done.returncode == 2 and "fewer than 3 steps" in done.stderr


def test_the_exit_code_is_passed_on(call: Call) -> None:
    done = call("repeat", "run", "--regions", "aten::addmm", "--json", args=("9", "fail"))
    assert done.returncode == 7, done.stderr
    assert "The command ended with exit code 7." in json.loads(done.stdout)["notes"]
    done = call("repeat", "run", "--regions", "aten::addmm", script="-c", args=("import sys; sys.exit(3)",))
    assert done.returncode == 3 and done.stdout == ""


def test_a_training_program(call: Call) -> None:
    recorded = call("record", "-o", "trained", "--capture", "values", script="training.py")
    assert recorded.returncode == 0, recorded.stderr
    words = (
        "--regions",
        "aten::mm,aten::gelu_backward",
        "--times",
        "4",
        "--seconds",
        "0.01",
        "--rounds",
        "2",
        "--copies",
        "2",
    )
    found = document(call("repeat", "trained", *words, "--json", script="training.py"))
    assert found["step_kind"] == "steps of the optimiser"
    for region in found["regions"]:
        assert region["refusal"] is None and region["calls_per_step"] >= 1, region


def test_iterations_that_are_not_alike_are_refused_in_place() -> None:
    sizes = iter([4, 4, 4, 5, 4, 4, 4, 4])

    def step() -> None:
        torch.relu(torch.ones(next(sizes)))

    with pytest.raises(NotRepeatableError, match="not alike"):
        repeat_in_place(step, lambda name, _: name == "aten::relu", times=3, iterations=1, rounds=2)


def test_a_repetition_that_fails_leaves_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from magneton.collectors.replay import torch as repeat

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(repeat, "rotate", broken)
    seen: list[Any] = []
    with pytest.raises(NotRepeatableError, match="its trial failed: RuntimeError: out of memory"):
        repeat_in_place(
            lambda: seen.append(torch.relu(torch.ones(3))), lambda name, _: True, times=2, iterations=1, rounds=1
        )
    assert len(seen) == 1 and torch.equal(seen[0], torch.ones(3))
