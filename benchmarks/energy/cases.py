"""Simulated cases: how much of the energy can be told apart, controls that must be refused, tokens, repeats, significance."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.energy.powers import BOARDS
from benchmarks.energy.simulate import SENSORS, Repeated, Sensor, Template, generated, model_of, read_sensor
from magneton.analysis.energy.measure.integrate import integrate_counter, prepare
from magneton.analysis.energy.measure.result import Window
from magneton.analysis.energy.repeats.difference import from_repeats
from magneton.analysis.energy.sensor_model.disaggregate import MAX_HALF_WIDTH, Disaggregation, disaggregate
from magneton.analysis.energy.sensor_model.estimate import estimate_total
from magneton.analysis.energy.sensor_model.sensor import Response, SensorModel, boxcar, lock
from magneton.analysis.energy.significance import compare_interleaved, run_order, welch

KINDS = ("gemm:a", "gemm:b", "attention", "normalization:a", "normalization:b", "elementwise", "copy", "reduction")
# Running time before and after the window that is looked at.
MARGIN_S = 1.5
# A looser rule beside that of the analysis.
LOOSE = 0.10


@dataclass(frozen=True)
class Identification:
    """What disaggregation made of many simulated runs of one case, in percent.

    Attributes:
        case: what was simulated.
        within: widest half-width that counts as identified.
        runs: number of runs.
        identified: share of the running energy in groups that count as identified (the group of everything left out).
        single: the same, classes alone only.
        p90: error of identified groups that 90 % stay within.
        coverage: share of identified groups whose interval holds the truth.
        wrong: share of identified groups off by more than twice the half-width.
        groups: number of identified groups.
        total_p90: error of the total.
        total_coverage: share of totals whose interval holds the truth.
        refused: number of refusals, by reason.
    """

    case: str
    within: float
    runs: int
    identified: float
    single: float
    p90: float | None
    coverage: float | None
    wrong: float | None
    groups: int
    total_p90: float
    total_coverage: float
    refused: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One simulated run: shares identified, for each identified group its error and half-width, and the total's."""

    identified: float
    single: float
    groups: tuple[tuple[float, float], ...]
    total_error: float
    total_half: float
    refusals: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One simulated case. ``change`` alters the model that the analysis is given; the rest is what really happens."""

    name: str
    sensor: str
    length_s: float
    template: Callable[[np.random.Generator], Template]
    change: Callable[[SensorModel], SensorModel] = lambda m: m
    stretch_sd: float = 0.01
    gap_share: float = 0.03
    stamp_sd_s: float = 0.0
    logarithmic: bool = False
    response: Response | None = None

    @property
    def window(self) -> tuple[float, float]:
        """What is looked at, s."""
        return (MARGIN_S, MARGIN_S + self.length_s)

    def device(self, rng: np.random.Generator) -> Repeated:
        """Return a device that runs the case."""
        return Repeated(
            self.template(rng),
            self.length_s + 2 * MARGIN_S,
            rng,
            board=BOARDS[SENSORS[self.sensor].board],
            stretch_sd=self.stretch_sd,
            gap_share=self.gap_share,
        )


def summary(case: str, outcomes: Sequence[Outcome], within: float = MAX_HALF_WIDTH) -> Identification:
    """Summarise runs, of one case or of several."""
    errors = np.array([e for o in outcomes for e, _ in o.groups])
    halves = np.array([h for o in outcomes for _, h in o.groups])
    totals = np.array([o.total_error for o in outcomes])
    refused: dict[str, int] = {}
    for reason in (r for o in outcomes for r in o.refusals):
        # Without its figures.
        key = re.split(r"[:(]|(?=\d)", reason)[0].strip() or re.sub(r"^\S+ of ", "some ", reason).split(":")[0]
        refused[key] = refused.get(key, 0) + 1
    some = len(errors) > 0
    return Identification(
        case=case,
        within=100 * within,
        runs=len(outcomes),
        identified=100 * float(np.mean([o.identified for o in outcomes])),
        single=100 * float(np.mean([o.single for o in outcomes])),
        p90=100 * float(np.percentile(np.abs(errors), 90)) if some else None,
        coverage=100 * float(np.mean(np.abs(errors) <= halves)) if some else None,
        wrong=100 * float(np.mean(np.abs(errors) > 2 * halves)) if some else None,
        groups=len(errors),
        total_p90=100 * float(np.percentile(np.abs(totals), 90)),
        total_coverage=100 * float(np.mean(np.abs(totals) <= [o.total_half for o in outcomes])),
        refused=refused,
    )


def identification(setting: Setting, seeds: Sequence[int], within: float = MAX_HALF_WIDTH) -> list[Outcome]:
    """Run a case with each seed."""
    sensor = SENSORS[setting.sensor]
    outcomes = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 41])
        device = setting.device(rng)
        log = read_sensor(
            device,
            sensor,
            rng,
            0.0,
            device.end_s,
            stamp_sd_s=setting.stamp_sd_s,
            logarithmic=setting.logarithmic,
            response=setting.response,
        )
        found = disaggregate(
            lock(log.t_s, log.value),
            device,
            setting.window,
            setting.change(model_of(sensor)),
            iterations_s=device.iterations_s,
            within=within,
        )
        if found is not None:
            outcomes.append(_outcome(found, device, setting.window))
    return outcomes


def _outcome(found: Disaggregation, device: Repeated, window: tuple[float, float]) -> Outcome:
    by_class, _, total = device.truth(*window)
    share = single = 0.0
    groups = []
    for group in found.identified:
        if len(group.classes) == len(device.classes):
            continue
        truth = float(sum(by_class[device.classes.index(c)] for c in group.classes))
        share += truth / float(by_class.sum())
        single += truth / float(by_class.sum()) if len(group.classes) == 1 else 0.0
        groups.append((group.energy_j / truth - 1, (group.high_j - group.low_j) / 2 / truth))
    half = (found.total_high_j - found.total_low_j) / 2 / total
    return Outcome(share, single, tuple(groups), found.total_j / total - 1, half, found.refusals)


def make(
    span_s: float, *, kinds: tuple[str, ...] = KINDS, calls: int = 80
) -> Callable[[np.random.Generator], Template]:
    """Return a maker of generated iterations."""
    return lambda rng: generated(rng, span_s=span_s, kinds=kinds, calls=calls)


def fixed_ratio(span_s: float) -> Callable[[np.random.Generator], Template]:
    """Return a maker of iterations in which every reading sees the classes in one ratio: they alternate within 1 ms."""

    def build(rng: np.random.Generator) -> Template:
        count = int(span_s / 0.001)
        share = rng.uniform(0.2, 0.8, 1)[0]
        start = np.repeat(np.arange(count) * 0.001, 2)
        start[1::2] += 0.001 * share
        length = np.tile([0.001 * share, 0.001 * (1 - share) * 0.95], count)
        # A pause, so that the two together vary.
        keep = start < 0.6 * span_s
        return Template(start[keep], length[keep], np.tile([0, 1], count)[keep], ("gemm", "elementwise"), span_s)

    return build


def controls() -> list[Setting]:
    """Return the cases that must be refused."""
    wide = lambda m: replace(m, response=boxcar(0.100))  # noqa: E731
    narrow = lambda m: replace(m, response=boxcar(0.020))  # noqa: E731
    return [
        Setting("wrong window: 25 ms taken for 100 ms", "H100 instant", 20.0, make(0.16), change=wide),
        Setting("wrong window: 100 ms taken for 20 ms", "RTX3090 instant", 20.0, make(0.16), change=narrow),
        Setting("iteration = update period", "A100 instant", 20.0, make(0.1012), stretch_sd=0.0, gap_share=0.0),
        Setting("iteration = update period / 10", "H100 instant", 20.0, make(0.010), stretch_sd=0.0, gap_share=0.0),
        Setting("classes in a fixed ratio", "A100 instant", 20.0, fixed_ratio(0.3)),
        Setting("time stamps off by 20 ms, independently", "A100 instant", 20.0, make(0.16), stamp_sd_s=0.020),
        Setting("sensor with a logarithmic response", "H100 instant", 20.0, make(0.16), logarithmic=True),
    ]


def hard() -> list[Setting]:
    """Return loops hardly longer than what a reading averages over: little can be told apart, and that must be right."""
    return [
        Setting("10.7 ms an iteration, A100 instant", "A100 instant", 60.0, make(0.0107)),
        Setting("10.7 ms an iteration, H100 instant", "H100 instant", 60.0, make(0.0107)),
        Setting("10.7 ms an iteration, V100", "V100", 10.0, make(0.0107)),
        Setting("50 ms an iteration, RTX3090 instant", "RTX3090 instant", 60.0, make(0.05)),
    ]


def passive(templates: dict[str, Callable[[np.random.Generator], Template]]) -> list[Setting]:
    """Return the cases of the goals: V100 for 10 s and A100 for 60 s on each timeline."""
    found = []
    for name, template in templates.items():
        found.append(Setting(f"V100 10 s, {name}", "V100", 10.0, template))
        found.append(Setting(f"A100 60 s, {name}", "A100 instant", 60.0, template))
    return found


@dataclass(frozen=True)
class TokenRow:
    """Energy per token from a log: error in percent that 90 % stay within, and coverage of its interval."""

    case: str
    runs: int
    p90: float
    coverage: float
    half_width: float


DECODE_KINDS = ("gemm:qkv", "gemm:out", "gemm:up", "gemm:down", "attention", "normalization", "elementwise", "copy")
TOKENS_PER_STEP = 8


def tokens(seeds: Sequence[int]) -> list[TokenRow]:
    """Return what logs at 100 ms, 1 s and 30 s say of the energy per token of simulated H100 decoding."""
    rows = []
    for name, length in (
        ("H100 average", 60.0),
        ("H100 average, 1 s log", 120.0),
        ("H100 average, 30 s scrape", 900.0),
    ):
        sensor = SENSORS[name]
        errors, inside, widths = [], [], []
        for seed in seeds:
            rng = np.random.default_rng([seed, 43])
            template = generated(rng, span_s=0.0107, kinds=DECODE_KINDS, calls=120)
            device = Repeated(template, length + 5.0, rng, board=BOARDS["H100"], drift=0.02)
            window = (2.0, 2.0 + length)
            log = read_sensor(device, sensor, rng, 0.0, device.end_s)
            updates = lock(log.t_s, log.value, period_s=sensor.period_s)
            steps = device.iterations_s
            count = int(np.sum((steps >= window[0]) & (steps < window[1]))) * TOKENS_PER_STEP
            made = estimate_total(updates, device, window, model_of(sensor))
            if made is None:
                continue
            truth = device.truth(*window)[2] / count
            errors.append(abs(made.energy_j / count / truth - 1))
            inside.append(made.low_j / count <= truth <= made.high_j / count)
            widths.append((made.high_j - made.low_j) / 2 / made.energy_j)
        rows.append(
            TokenRow(
                name,
                len(errors),
                100 * float(np.percentile(errors, 90)),
                100 * float(np.mean(inside)),
                100 * float(np.median(widths)),
            )
        )
    return rows


def repeated_template(template: Template, which: int, times: int) -> Template:
    """Return an iteration in which every call of one class runs ``times`` times in place."""
    order = np.argsort(template.start_s, kind="stable")
    start, length, class_of = [], [], []
    shift = 0.0
    for i in order.tolist():
        count = times if template.class_of[i] == which else 1
        for k in range(count):
            start.append(template.start_s[i] + shift + k * template.length_s[i])
            length.append(template.length_s[i])
            class_of.append(template.class_of[i])
        shift += (count - 1) * template.length_s[i]
    return Template(
        np.array(start), np.array(length), np.array(class_of, dtype=np.int64), template.classes, template.span_s + shift
    )


def repeats(sensor: Sensor, seeds: Sequence[int], *, length_s: float = 10.0, times: int = 20) -> TokenRow:
    """Return the error of in-place repeats: two runs of 10 s, with the operation 20 times and once."""
    errors, inside, widths = [], [], []
    for seed in seeds:
        rng = np.random.default_rng([seed, 47])
        template = generated(rng, span_s=0.0107, kinds=DECODE_KINDS, calls=40)
        which = int(rng.integers(0, len(DECODE_KINDS)))
        gain, offset = 1 + 0.003 * rng.standard_normal(), 0.3 * rng.standard_normal()
        per_iteration = []
        powers = None
        truth = 0.0
        for count in (times, 1):
            shape = repeated_template(template, which, count)
            # The pause between iterations is the program's and does not grow with the repeated operation.
            pause = 0.03 * template.span_s / shape.span_s
            device = Repeated(
                shape, length_s + 3.0, rng, board=BOARDS[sensor.board], powers_w=powers, drift=0.0, gap_share=pause
            )
            powers = device.dynamic_w
            truth = (device.board.idle_w + float(powers[which])) * float(
                template.length_s[template.class_of == which].sum()
            )
            # From run to run all powers differ by 0.3 %.
            device.scale(1 + 0.003 * float(rng.standard_normal()))
            window = (1.5, 1.5 + length_s)
            log = read_sensor(device, sensor, rng, 0.0, device.end_s, gain_sd=0.0, offset_sd_w=0.0)
            done = float(np.interp(window[1], device.iterations_s, np.arange(len(device.iterations_s))))
            done -= float(np.interp(window[0], device.iterations_s, np.arange(len(device.iterations_s))))
            value = log.value * gain + (0.0 if sensor.counter else offset)
            energy, sd = _run_energy(sensor, log.t_s, value, device, window)
            per_iteration.append((energy / done, np.hypot(sd, 0.003 * energy) / done))
        made = from_repeats([per_iteration[0]], [per_iteration[1]], times, gain_sd=0.003)
        errors.append(abs(made.energy_j / truth - 1))
        inside.append(made.low_j <= truth <= made.high_j)
        widths.append((made.high_j - made.low_j) / 2 / made.energy_j)
    return TokenRow(
        sensor.name,
        len(errors),
        100 * float(np.percentile(errors, 90)),
        100 * float(np.mean(inside)),
        100 * float(np.median(widths)),
    )


def _run_energy(
    sensor: Sensor, t_s: np.ndarray, value: np.ndarray, device: Repeated, window: tuple[float, float]
) -> tuple[float, float]:
    if sensor.counter:
        samples = prepare(np.round(t_s * 1e9).astype(np.int64), value, counter=True)
        found = integrate_counter(samples, Window(int(window[0] * 1e9), int(window[1] * 1e9)))
        return found.value_j or 0.0, sensor.period_s * 300.0 / 3
    made = estimate_total(lock(t_s, value, period_s=sensor.period_s), device, window, model_of(sensor))
    if made is None:
        return 0.0, 0.0
    return made.energy_j, made.fit_sd_j


@dataclass(frozen=True)
class SignificanceRow:
    """How often a difference is called one, in percent of the trials."""

    runs_per_side: int
    difference: float
    drift: float
    welch: float
    with_drift: float


def significance(trials: int, seed: int = 20260102, *, cv: float = 0.5) -> list[SignificanceRow]:
    """Return how often interleaved runs show a difference, with a run-to-run deviation of ``cv`` percent."""
    rng = np.random.default_rng(seed)
    rows = []
    for pairs in (5, 10):
        order = run_order(pairs)
        side = np.array([c == "B" for c in order])
        at = np.arange(len(order))
        for difference in (0.0, 2.0):
            for drift in (0.0, 1.5):
                plain = lined = 0
                for _ in range(trials):
                    warm = drift * (1 - np.exp(-at / (len(order) / 3.0)))
                    y = 100 * (1 + difference / 100 * side) + warm + cv * rng.standard_normal(len(order))
                    plain += welch(y[~side].tolist(), y[side].tolist()).significant
                    lined += compare_interleaved(order, y.tolist()).significant
                rows.append(SignificanceRow(pairs, difference, drift, 100 * plain / trials, 100 * lined / trials))
    return rows
