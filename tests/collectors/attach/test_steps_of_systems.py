"""The protocol of systems: which steps count, where recording begins, what each system tells. No framework is needed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from magneton.collectors.attach import attached as attached_module
from magneton.collectors.attach import sessions
from magneton.collectors.attach.attached import Attached
from magneton.collectors.attach.ranks import rank_of_process
from magneton.collectors.attach.request import CaptureReply, CaptureRequest, claim
from magneton.collectors.systems import SYSTEMS, systems
from magneton.collectors.systems.protocol import DECODE, PREFILL, Facts, StepKind

FOLDER = Path(attached_module.__file__).parents[1] / "systems"


class FakeSession:
    """Notes what it is told."""

    def __init__(self, wanted: int, framework: str) -> None:
        self.wanted, self.framework = wanted, framework
        self.steps: list[tuple[Any, ...]] = []

    @property
    def complete(self) -> bool:
        return len(self.steps) >= self.wanted

    def called(self, module: Any, args: Any) -> None:
        pass

    def returned(self, result: Any) -> None:
        pass

    def step(self, *told: Any) -> None:
        self.steps.append(told)

    def close(self) -> CaptureReply:
        return CaptureReply(rank=0, steps=len(self.steps))


class Program:
    """A process with hooks for torch and others, told by hand."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup: int, steps: int, capture: str) -> None:
        request = CaptureRequest(capture, str(tmp_path), str(tmp_path), warmup_steps=warmup, steps=steps)
        self.opened: list[FakeSession] = []
        monkeypatch.setattr(sessions, "open_session", self._open)
        self.attached = Attached(request)
        self.wanted = steps
        self.torch = self.attached.listener("torch", SimpleNamespace(FRAMEWORK="torch", facts=Facts))  # type: ignore[arg-type]
        self.jax = self.attached.listener("jax", SimpleNamespace(FRAMEWORK="jax", facts=Facts))  # type: ignore[arg-type]

    def _open(self, request: Any, rank: int, framework: str, modules: Any, warmed: int) -> FakeSession:
        self.opened.append(FakeSession(self.wanted, framework))
        return self.opened[-1]

    @property
    def kinds(self) -> list[str]:
        return [step[0] for step in self.opened[0].steps] if self.opened else []

    @property
    def phases(self) -> list[str | None]:
        return [step[1] for step in self.opened[0].steps] if self.opened else []

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            self.torch.called(object(), [])
            self.torch.returned(None)
            self.torch.step(StepKind.CALLS)

    def generate(self, tokens: int) -> None:
        with self.torch.only(StepKind.GENERATION):
            for number in range(tokens):
                phase = DECODE if number else PREFILL
                self.torch.called(object(), [])
                self.torch.begin(StepKind.GENERATION, phase)
                self.torch.returned(None)
                self.torch.step(StepKind.CALLS)
                self.torch.step(StepKind.GENERATION, phase, 1 if number else 8, 1)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Program]:
    def made(warmup: int = 2, steps: int = 3, capture: str = "energy") -> Program:
        for path in tmp_path.iterdir():
            path.unlink()
        return Program(tmp_path, monkeypatch, warmup, steps, capture)

    return made


def test_calls_of_modules_are_steps_where_nothing_else_is(program: Any) -> None:
    p = program()
    p.call(9)
    assert p.kinds == [StepKind.CALLS] * 3


def test_weaker_steps_do_not_count(program: Any) -> None:
    p = program()
    p.call(4)
    assert p.opened, "recording has begun with the calls"
    p = program()
    p.torch.expect(StepKind.OPTIMIZER)
    for _ in range(6):
        p.call(3)
        p.torch.step(StepKind.OPTIMIZER)
    assert p.kinds == [StepKind.OPTIMIZER] * 3


def test_an_optimiser_that_comes_late_begins_the_count_anew(program: Any) -> None:
    p = program()
    p.call(1)
    p.torch.expect(StepKind.OPTIMIZER)
    p.torch.step(StepKind.OPTIMIZER)
    assert not p.opened
    p.torch.step(StepKind.OPTIMIZER)
    assert p.opened


@pytest.mark.parametrize("capture", ["energy", "profile", "values"])
def test_a_recording_of_generate_begins_with_a_prefill(program: Any, capture: str) -> None:
    p = program(capture=capture)
    p.generate(5)
    assert not p.opened
    p.generate(5)
    assert p.phases == [PREFILL, DECODE, DECODE]
    assert p.opened[0].steps[0] == (StepKind.GENERATION, PREFILL, 8, 1)


def test_a_program_with_one_prefill_is_not_recorded_without_it(program: Any, tmp_path: Path) -> None:
    p = program()
    p.generate(9)
    assert not p.opened
    p.attached._at_exit()
    seen = [json.loads(path.read_bytes()) for path in tmp_path.glob("energy-seen-*.json")]
    assert [(s["steps"], s["prefills"]) for s in seen if s["framework"] == "torch"] == [(9, 1)]
    p = program(warmup=0)
    p.generate(9)
    assert p.phases == [PREFILL, DECODE, DECODE]


def test_an_engine_that_only_decodes_is_recorded(program: Any) -> None:
    p = program()
    for _ in range(9):
        p.torch.begin(StepKind.ENGINE, DECODE)
        p.torch.step(StepKind.ENGINE, DECODE, 4, 4)
    assert p.phases == [DECODE] * 3


def test_model_calls_around_generate_count_too(program: Any) -> None:
    p = program(warmup=1)
    p.generate(1)
    p.call(9)
    assert not p.opened, "there was a prefill, so the next one is waited for"
    p.generate(2)
    assert p.phases == [PREFILL, DECODE]


def test_the_framework_that_is_warm_first_is_recorded_and_the_other_is_said(program: Any, tmp_path: Path) -> None:
    p = program()
    p.jax.begin(StepKind.PROGRAMS)
    p.jax.step(StepKind.PROGRAMS)
    p.call(9)
    assert [s.framework for s in p.opened] == ["torch"]
    reply = json.loads((tmp_path / "energy-rank0.json").read_bytes())
    assert "1 calls of a compiled program" in reply["notes"][0]


def test_a_forked_process_counts_for_itself(program: Any) -> None:
    p = program()
    p.call(1)
    p.attached.forked()
    p.call(1)
    assert not p.opened
    p.call(1)
    assert p.opened


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert rank_of_process() == (0, False)
    monkeypatch.setenv("RANK", "3")
    assert rank_of_process() == (3, True)
    request = CaptureRequest("energy", str(tmp_path), str(tmp_path))
    assert claim(request, (3, True)) == 3
    assert claim(request, (3, True)) is None, "the launcher gave it to another process"
    assert [claim(request, (0, False)) for _ in range(4)] == [0, 1, 2, 4]


# -- the files of the systems


def test_the_file_of_a_system_is_short(root: Path) -> None:
    files = {p.stem: len(p.read_text().splitlines()) for p in FOLDER.glob("*.py")}
    assert {name for name in files if name not in ("__init__", "protocol")} == set(SYSTEMS)
    assert {name: n for name, n in files.items() if name in SYSTEMS and n >= 100} == {}


def test_every_system_offers_what_the_protocol_says() -> None:
    for name, system in systems().items():
        assert system.FRAMEWORK in ("torch", "jax", "onnxruntime", "tensorflow"), name
        assert system.MODULES and system.facts() == Facts(name=None if name == "torch" else name)
        assert isinstance(system.OPERATORS, tuple)


class Told:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def expect(self, kind: StepKind) -> None:
        self.told.append(("expect", kind))

    def only(self, kind: StepKind) -> Any:
        return contextlib.nullcontext()

    def begin(self, kind: StepKind, phase: str | None = None) -> None:
        self.told.append(("begin", kind, phase))

    def step(
        self, kind: StepKind, phase: str | None = None, tokens: int | None = None, requests: int | None = None
    ) -> None:
        self.told.append(("step", kind, phase, tokens, requests))

    def called(self, module: Any, args: Any) -> None:
        pass

    def returned(self, result: Any) -> None:
        pass


def test_steps_of_vllm() -> None:
    class WorkerWrapperBase:
        def execute_model(self, scheduler_output: Any) -> str:
            return "result"

    module, told = ModuleType("worker_base"), Told()
    module.WorkerWrapperBase = WorkerWrapperBase  # type: ignore[attr-defined]
    systems()["vllm"].install(module, told)
    worker = WorkerWrapperBase()
    for tokens, fresh in [({}, []), ({"a": 11}, ["a"]), ({"a": 1}, []), ({"a": 1, "b": 7}, ["b"])]:
        work = SimpleNamespace(num_scheduled_tokens=tokens, scheduled_new_reqs=fresh)
        assert worker.execute_model(work) == "result"
    assert told.told[0] == ("expect", StepKind.ENGINE)
    assert [t[2:] for t in told.told if t[0] == "step"] == [("prefill", 11, 1), ("decode", 1, 1), ("mixed", 8, 2)]


def test_steps_of_sglang() -> None:
    class ModelRunner:
        def forward(self, forward_batch: Any, skip: bool = False) -> str:
            return "result"

    class Mode(str):
        def is_idle(self) -> bool:
            return self == "idle"

        def is_mixed(self) -> bool:
            return self == "mixed"

        def is_extend(self) -> bool:
            return self in ("extend", "mixed")

    module, told = ModuleType("model_runner"), Told()
    module.ModelRunner = ModelRunner  # type: ignore[attr-defined]
    systems()["sglang"].install(module, told)
    for mode, tokens, batch in [("extend", 16, 1), ("decode", 1, 1), ("idle", 0, 0), ("mixed", 9, 2)]:
        ids = SimpleNamespace(shape=(tokens,))
        ModelRunner().forward(SimpleNamespace(forward_mode=Mode(mode), input_ids=ids, batch_size=batch))
    assert [t[2:] for t in told.told if t[0] == "step"] == [("prefill", 16, 1), ("decode", 1, 1), ("mixed", 9, 2)]


def test_steps_of_diffusers() -> None:
    class SchedulerMixin:
        pass

    module, told = ModuleType("scheduling_utils"), Told()
    module.SchedulerMixin = SchedulerMixin  # type: ignore[attr-defined]
    systems()["diffusers"].install(module, told)

    class Scheduler(SchedulerMixin):
        def __init__(self, steps: int = 3) -> None:
            self.steps = steps

        def step(self, model_output: Any, timestep: int, sample: Any) -> str:
            return "result"

    class Own(Scheduler):
        pass

    scheduler = Own(steps=2)
    assert scheduler.steps == 2
    assert told.told[0] == ("expect", StepKind.DENOISING)
    assert scheduler.step(SimpleNamespace(shape=(2, 4)), 0, None) == "result"
    assert told.told[-1] == ("step", StepKind.DENOISING, None, None, 2)
