"""What Prometheus metrics mean: DCGM's by name, others by the unit they state or carry in their name.

A device is named by its UUID if a label gives one. Samples of one GPU under different pod labels are one device; the pod is kept
in ``labels``. Metrics without a known device are told apart by all their labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from magneton.schemas.kinds import Clock, DeviceKind, PowerField
from magneton.transforms.power import fields
from magneton.transforms.power.builder import LogBuilder
from magneton.transforms.power.readings import Series, labels_json
from magneton.transforms.reading.decimals import reading

_DCGM: dict[str, tuple[str, str]] = {
    "DCGM_FI_DEV_POWER_USAGE": (PowerField.POWER, "W"),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": (PowerField.POWER_INSTANT, "W"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (PowerField.ENERGY_COUNTER, "mJ"),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": (PowerField.POWER_LIMIT, "W"),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": (PowerField.POWER_LIMIT, "W"),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature", "degC"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("temperature_memory", "degC"),
    "DCGM_FI_DEV_SM_CLOCK": ("clock_sm", "MHz"),
    "DCGM_FI_DEV_MEM_CLOCK": ("clock_memory", "MHz"),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", "%"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization_memory", "%"),
    "DCGM_FI_DEV_FB_USED": ("memory_used", "MiB"),
}
_AMD: dict[str, tuple[str, str]] = {  # of AMD's device-metrics-exporter, whose names carry no unit
    "gpu_package_power": (PowerField.POWER_INSTANT, "W"),
    "gpu_average_package_power": (PowerField.POWER_AVERAGE, "W"),
    "gpu_energy_consumed": (PowerField.ENERGY_COUNTER, "uJ"),
}
_THROTTLE = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
# Kepler splits what a node used among its containers, pods, processes and machines; each is a part of the node.
_KEPLER = re.compile(
    r"kepler_(node|container|pod|process|vm)_(?:(cpu|gpu|package|core|uncore|dram|platform|psys|other|other_host_components)_)?"
    r"(?:(active|idle|dynamic)_)?(joules|watts)(?:_total)?"
)
_SCAPHANDRE = re.compile(
    r"scaph_(host|socket|domain|process)_(?:rapl_(psys)_)?(?:(power|energy)_)?(?:consumption_)?(microwatts|microjoules)(?:_total)?"
)
_RAPL = re.compile(r"node_rapl_(\w+?)_joules_total")
_UNIT_SUFFIX = re.compile(r"_((?:kilo|milli|micro|nano)?(?:watts|joules))(?:_total)?$")
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
_INDEX_LABELS = ("gpu", "gpu_id", "gpu_index", "minor_number", "card", "device", "package", "index")
_HOST_LABELS = ("Hostname", "hostname", "host", "node", "instance")
_ZONES: dict[str, str] = {
    "package": DeviceKind.CPU,
    "core": DeviceKind.CORE,
    "pp0": DeviceKind.CORE,
    "uncore": DeviceKind.UNCORE,
    "pp1": DeviceKind.UNCORE,
    "dram": DeviceKind.DRAM,
    "psys": DeviceKind.PSYS,
    "platform": DeviceKind.PSYS,
    "gpu": DeviceKind.GPU,
}
_SCRAPE_LABELS = ("job", "instance")
# DCGM writes these (and up to 3 more, saying why) where it has no value: 32 bit, float, and 64 bit as a float holds it.
_BLANKS = ((2147483632, 2147483635), (140737488355328, 140737488355331), (9223372036854774784, 9223372036854775808))


class MetricReader:
    """Turns samples (metric name, labels, value) into rows of a log."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, fields.Scale | None, str] | None] = {}
        self.types: dict[str, str] = {}
        self.units: dict[str, str] = {}

    def sample(self, name: str, labels: Mapping[str, str], value: str, ts_ns: int | str | None, raw: str) -> None:
        """Enter one sample; unknown metrics are counted by name."""
        key = (name, tuple(sorted(labels.items())))
        if key not in self._known:
            self._known[key] = self._series(name, labels)
        known = self._known[key]
        if known is None:
            return self._builder.ignore(name)
        series, scale, field = known
        if name.startswith("DCGM_") and _is_blank(reading(value)):
            value = ""
        cell = fields.read_cell(series, field, scale, value, self._builder.kind_of(series))
        return self._builder.row(self._builder.report.n_rows, ts_ns, [cell], raw)

    def _series(self, name: str, labels: Mapping[str, str]) -> tuple[int, fields.Scale | None, str] | None:
        meaning = self._meaning(name)
        nested = _nested(name, labels)
        if nested is not None:
            meaning = nested
        if meaning is None:
            return None
        source, kind, field, unit = meaning
        scale = fields.unit_scale(unit)
        device, used = _device(name, labels) if nested is None else _part(labels)
        rest = {k: v for k, v in labels.items() if k not in used}
        series = Series(
            name, source, kind, device, field, scale[0] if scale else unit, Clock.REALTIME, labels_json(rest)
        )
        return self._builder.series(series, dict(labels)), scale, field

    def _meaning(self, name: str) -> tuple[str, str, str, str] | None:
        """Return (source, device kind, field, unit) of a metric, or None when we do not know it."""
        if name in _DCGM:
            return ("dcgm", DeviceKind.GPU, *_DCGM[name])
        if name in _THROTTLE:
            return "dcgm", DeviceKind.GPU, "throttle_reasons", "1"
        if name.lower() in _AMD:
            return ("amd-exporter", DeviceKind.GPU, *_AMD[name.lower()])
        family = name.removesuffix("_total")
        if rapl := _RAPL.fullmatch(name):
            zone = rapl.group(1)
            return "prometheus", DeviceKind.CPU if zone == DeviceKind.PACKAGE else zone, PowerField.ENERGY_COUNTER, "J"
        suffix = _UNIT_SUFFIX.search(name)
        unit = self.units.get(name) or self.units.get(family) or (suffix.group(1) if suffix else None)
        scale = fields.unit_scale(unit)
        if unit is None or scale is None or scale[0] not in {"W", "J"} or name.endswith("_created"):
            return None
        words = set(name.lower().split("_"))
        kind = DeviceKind.GPU if words & {"gpu", "nvidia", "amd", "dcgm", "rocm"} else DeviceKind.OTHER
        if scale[0] == "W":
            return "prometheus", kind, fields.power_field(name), unit
        kind_of_metric = self.types.get(name) or self.types.get(family)
        counts_up = kind_of_metric == "counter" or (kind_of_metric is None and name.endswith("_total"))
        if counts_up or "consumption" in words or "consumed" in words:
            return "prometheus", kind, PowerField.ENERGY_COUNTER, unit
        return "prometheus", kind, name.lower(), unit


def _nested(name: str, labels: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    """Return (source, device kind, field, unit) of a metric whose scopes are nested: of Kepler and Scaphandre; None for others.

    The kind says what the number is of and what of it: ``cpu`` of a node, ``container_cpu`` of one container in it.
    """
    if match := _KEPLER.fullmatch(name):
        owner, part, share, unit = match.groups()
        zone = labels.get("zone", "") if part in (None, "cpu") else part
        kind = _ZONES.get(zone.split("-")[0].lower(), zone or None) or ("cpu" if part == "cpu" else DeviceKind.NODE)
        # Active and idle are parts of the whole that the plain name gives.
        kind = f"{share}_{kind}" if share else kind
        field = PowerField.POWER if unit == "watts" else PowerField.ENERGY_COUNTER
        return "kepler", kind if owner == "node" else f"{owner}_{kind}", field, unit
    if match := _SCAPHANDRE.fullmatch(name):
        owner, psys, _, unit = match.groups()
        domain = labels.get("domain_name", "domain").lower()
        kind = {"host": DeviceKind.NODE, "socket": DeviceKind.CPU, "process": "process_node"}.get(
            owner, _ZONES.get(domain, domain)
        )
        field = PowerField.POWER if unit == "microwatts" else PowerField.ENERGY_COUNTER
        return "scaphandre", DeviceKind.PSYS if psys else kind, field, unit
    return None


def _part(labels: Mapping[str, str]) -> tuple[str | None, set[str]]:
    """Return the name of a part of a node: its host, and all labels that tell it from others."""
    host = next((k for k in (*_HOST_LABELS, "node_name") if labels.get(k)), None)
    skipped = {*_SCRAPE_LABELS, *_HOST_LABELS, "node_name", "zone", "domain_name"}
    telling = {k: v for k, v in labels.items() if k not in skipped and v}
    text = labels_json(telling) or ""
    name = "/".join(part for part in (labels[host] if host else "", text) if part)
    return name or None, set(labels)


def _device(name: str, labels: Mapping[str, str]) -> tuple[str | None, set[str]]:
    """Return the device that a sample's labels name, and the labels that say so."""
    for key in _UUID_LABELS:
        if labels.get(key):
            return labels[key], {key}
    host = next((k for k in _HOST_LABELS if labels.get(k)), None)
    prefix = f"{labels[host]}/" if host else ""
    used = {host} if host else set()
    if rapl := _RAPL.fullmatch(name):
        return f"{prefix}{rapl.group(1)}-{labels.get('index', '')}", used | {"index"}
    for key in _INDEX_LABELS:
        if labels.get(key):
            return prefix + labels[key], used | {key}
    telling = {k: v for k, v in labels.items() if k not in _SCRAPE_LABELS}
    return (labels_json(telling), set(telling)) if telling else (None, set())


def _is_blank(value: float | str) -> bool:
    return isinstance(value, float) and any(low <= value <= high for low, high in _BLANKS)
