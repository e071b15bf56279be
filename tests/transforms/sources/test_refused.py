"""A file that is no trace we read is named for what it is, with the way to one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from magneton.schemas.errors import InputFormatError
from magneton.transforms.normalize import normalize

GIVEN = {
    "run.nsys-rep": (b"NSYS\0\1\2", "Nsight Systems", "nsys export --type sqlite"),
    "run.qdrep": (b"\0\1", "Nsight Systems", "nsys export"),
    "run.ncu-rep": (b"NVR\0", "Nsight Compute", "torch.profiler"),
    "out.pftrace": (b"\x0a\x0e\x08\x01", "Perfetto", "traceconv"),
    "kernel_trace.csv": (
        b'"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp"\n"KERNEL",1,1\n',
        "rocprofv3",
        "--output-format rocpd",
    ),
    "hip_trace.csv": (b'"Domain","Function","Process_Id","Thread_Id","Correlation_Id"\n', "rocprofv3", "rocpd"),
    "dmon.txt": (b"# gpu    pwr  gtemp\n# Idx      W      C\n    0    60     40\n", "dmon", "--power"),
    "dmon_time.txt": (b"#Date Time gpu pwr\n#YYYYMMDD HH:MM:SS Idx W\n", "dmon", "--power"),
    "smi.xml": (b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log>\n<nvidia_smi_log>\n', "nvidia-smi", "--power"),
    "smi.csv": (b"timestamp, index, power.draw [W]\n2026/07/03, 0, 60 W\n", "power log", "--power"),
    "emissions.csv": (b"timestamp,project_name,run_id,duration,emissions,emissions_rate\n", "CodeCarbon", "sensors"),
    "p.speedscope.json": (
        b'{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":[]},"profiles":[]}',
        "speedscope",
        "torch.profiler",
    ),
    "p.hatchet": (
        b'[{"children":[],"frame":{"name":"ROOT","type":"function"},"metrics":{"time (ns)":1}},{"CUDA":{}}]',
        "Proton",
        'data="trace"',
    ),
    "snapshot.pickle": (b"\x80\x04\x95\0\0", "pickle", "export_chrome_trace"),
    "ops.parquet": (b"PAR1\0\0", "Parquet", "folder"),
    "report.html": (b"<!DOCTYPE html><html>", "web page", "trace itself"),
    "perf.data": (b"PERFILE2\0", "perf", "nsys"),
    "events.out.tfevents.1": (b"\x18\0\0\0", "TensorBoard", "plugins/profile"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_was_given_and_what_to_do(tmp_path: Path, name: str) -> None:
    content, what, remedy = GIVEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputFormatError) as found:
        normalize([tmp_path / name], tmp_path / "run")
    assert what.lower() in found.value.reason.lower()
    assert remedy in (found.value.remedy or "")
    assert "\n" not in str(found.value)


def test_large_files_too(tmp_path: Path) -> None:
    """64 KiB and more without an event list may be a trace; what begins like something else is not."""
    head = b'{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":['
    (tmp_path / "p.json").write_bytes(head + b'{"name":"f"},' * 20_000 + b'{"name":"g"}]}}')
    with pytest.raises(InputFormatError, match="speedscope"):
        normalize([tmp_path / "p.json"], tmp_path / "run")
