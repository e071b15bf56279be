"""Power logs of monitoring systems and meters: Prometheus in its forms, PTDaemon."""

from __future__ import annotations

import json

import pytest
from tests.support.power_cases import E0, books_balance, codes, energies, spl, window, write

from magneton.schemas.errors import InputFormatError
from magneton.transforms.power.log import PowerOptions
from magneton.transforms.power.registry import read_power

# ---- Prometheus ----------------------------------------------------------------------------------------------------


def test_pod_labels_stay_and_do_not_split_a_gpu(tmp_path):
    lines = [
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="GPU-a",pod="{pod}",namespace="n"}} {v} {1767225600 + t}000'
        for t, v, pod in ((0, 0, "x"), (1, 100000, "x"), (2, 200000, "y"), (3, 300000, "y"))
    ]
    log = read_power(write(tmp_path, "# TYPE a counter\n" + "\n".join(lines) + "\n", "a.prom"))
    assert energies(log.table, window(0, 3))["GPU-a"].value_j == 300.0
    assert [json.loads(x)["pod"] for x in log.table["labels"].to_pylist()] == ["x", "x", "y", "y"]
    twice = "\n".join([*lines, lines[-1].replace('"y"', '"z"')]) + "\n"
    log = read_power(write(tmp_path, twice, "a.prom"))
    assert log.report.dropped == {"exact_duplicate": 1} and books_balance(log)


@pytest.mark.parametrize(
    "blank", ["9223372036854775794", "9223372036854775792", "2147483634", "140737488355330.0", "NaN"]
)
def test_dcgm_blanks_are_missing(tmp_path, blank):
    text = f'DCGM_FI_DEV_POWER_USAGE{{UUID="g"}} 5 1000\nDCGM_FI_DEV_POWER_USAGE{{UUID="g"}} {blank} 2000\n'
    assert read_power(write(tmp_path, text)).report.dropped == {"not_available": 1}


def test_seconds_and_milliseconds_are_told_apart(tmp_path):
    line = 'gpu_power_watts{gpu="0"} 5 '
    for text, code in (
        (f"{line}1767225600000\n", None),
        (f"{line}1767225600.000\n# EOF\n", None),
        (f"{line}1767225600\n# EOF\n", None),
        (f"{line}1767225600\n", "time_stamp_unit_assumed"),
        (f"{line}1767225600.000\n", "truncated"),
    ):
        log = read_power(write(tmp_path, text))
        assert log.table["ts_ns"].to_pylist() == [E0], text
        assert code is None or code in codes(log)


def test_exposition_text_is_parsed_by_its_grammar(tmp_path):
    text = (
        "# HELP x y\n# TYPE x_watts gauge\n"
        r'x_watts{gpu="0",name="a \"b\", {c} # d\\e\nf"} 1.5e2 1000' + "\n"
        'x_watts { gpu = "1" , } +7 1000 # {trace_id="q"} 1 2\n'
        "node_load1 3 1000\nx_watts{gpu=\"0\" 5\nx_watts{gpu='0'} 5\nx_watts 1 2 3 4\n"
        'rapl_limit_watts{gpu="0"} 700 1000\ngpu_energy_joules{gpu="0"} 12 1000\n'
        'node_rapl_package_joules_total{index="0",path="/p",instance="h:9"} 4 1000\n'
    )
    log = read_power(write(tmp_path, text))
    rows = log.table.to_pylist()
    assert json.loads(rows[0]["labels"]) == {"name": 'a "b", {c} # d\\e\nf'}
    assert [(r["device_id"], r["field"], r["value"]) for r in rows] == [
        ("0", "power", 150.0),
        ("1", "power", 7.0),
        ("0", "power_limit", 700.0),
        ("0", "gpu_energy_joules", 12.0),
        ("h:9/package-0", "energy_counter", 4.0),
    ]
    assert log.report.ignored == {"node_load1": 1} and log.report.dropped == {"row_malformed": 3} and books_balance(log)


@pytest.mark.parametrize("shape", ["answer", "data", "list", "vector"])
def test_answers_of_the_api(tmp_path, shape):
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "Hostname": "h"}
    matrix = [{"metric": metric, "values": [[1767225600.123, "5"], [1767225601, "NaN"], [1, 2, 3]]}]
    document = {
        "answer": {"status": "success", "data": {"resultType": "matrix", "result": matrix}, "warnings": ["w"]},
        "data": {"resultType": "matrix", "result": matrix},
        "list": matrix,
        "vector": {"data": {"resultType": "vector", "result": [{"metric": metric, "value": [1767225600.123, "5"]}]}},
    }[shape]
    log = read_power(write(tmp_path, json.dumps(document), "q.json"))
    row = log.table.to_pylist()[0]
    assert (row["ts_ns"], row["value"], row["device_id"]) == (E0 + 123_000_000, 5.0, "h/0") and books_balance(log)
    assert log.report.dropped == ({} if shape == "vector" else {"not_available": 1, "row_malformed": 1})


def test_an_error_answer_and_unknown_metrics_are_refused(tmp_path):
    error = {"status": "error", "errorType": "bad_data", "error": "parse error"}
    with pytest.raises(InputFormatError, match="parse error"):
        read_power(write(tmp_path, json.dumps(error)))
    other = {"data": {"resultType": "matrix", "result": [{"metric": {"__name__": "up"}, "values": [[1, "1"]]}]}}
    with pytest.raises(InputFormatError, match="no power or energy"):
        read_power(write(tmp_path, json.dumps(other)))


# ---- PTDaemon ------------------------------------------------------------------------------------------------------


def test_dates_that_may_be_either_are_said_to_be_assumed(tmp_path):
    log = read_power(write(tmp_path, spl("02-03-2026")))
    assert "date_order_assumed" in codes(log) and log.report.date_order == "mdy"
    given_order = read_power(write(tmp_path, spl("02-03-2026")), PowerOptions(date_order="dmy"))
    months = (given_order.table["ts_ns"][0].as_py() - log.table["ts_ns"][0].as_py()) / 86400e9
    assert months == 27 and "date_order_assumed" not in codes(given_order)  # 2 March against 3 February
    crossing = read_power(write(tmp_path, spl("04-05-2026", "23:59:59.000") + spl("05-05-2026")))
    assert (crossing.report.date_order, crossing.report.date_order_source) == ("dmy", "shortest span")
    with pytest.raises(InputFormatError, match="neither"):
        read_power(write(tmp_path, spl("13-01-2026") + spl("01-13-2026")))


def test_no_reading_and_wrong_sums(tmp_path):
    part = spl("01-01-2026", watts="40.0").strip()
    text = spl("01-01-2026", watts="-1") + spl(
        "01-01-2026", "00:00:01.000", "100.0", f",Analyzer1,{part},Analyzer2,{part}"
    )
    log = read_power(write(tmp_path, text))
    power = [r for r in log.table.to_pylist() if r["field"] == "power"]
    assert [r["value"] for r in power] == [None, 100.0, 40.0, 40.0] and "analyzer_sum_mismatch" in codes(log)
