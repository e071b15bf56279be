"""The pages: generated ones are up to date, every command is in them, every example in the guide runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.small_recording import small_tables, write_recording

from magneton.analysis.query import Recordings
from magneton.cli import docs as cli_docs
from magneton.cli.app import main
from magneton.schemas import docs as schema_docs
from magneton.schemas import errors
from magneton.schemas.codes import QUARANTINE_REASONS, WARNING_CODES
from magneton.schemas.tables.diff import DIFF_TABLES
from magneton.schemas.tables.run import RUN_TABLES
from magneton.schemas.views.registry import RUNS, VIEWS

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "sql.md").read_text()
EXAMPLES = re.findall(r"^```sql\n(.*?)^```", GUIDE, re.M | re.S)
PAGES = {"docs/formats.md": schema_docs.text, "docs/cli.md": cli_docs.text}


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_up_to_date(root: Path, page: str) -> None:
    assert (root / page).read_text() == PAGES[page](), f"{page} is out of date; run `make docs`"


@pytest.mark.parametrize("module", ["magneton.schemas.docs", "magneton.cli.docs"])
def test_a_page_can_be_written_and_checked(tmp_path: Path, module: str) -> None:
    page = tmp_path / "page.md"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", module, str(page), *words], capture_output=True, text=True)

    assert call("--check").returncode == 1
    assert call().returncode == 0
    assert call("--check").returncode == 0
    page.write_text(page.read_text() + "x")
    stale = call("--check")
    assert stale.returncode == 1
    assert "make docs" in stale.stderr


def test_every_command_has_a_section_with_all_its_options(root: Path) -> None:
    text = (root / "docs" / "cli.md").read_text()
    for name, command in cli_docs.commands().items():
        section = re.search(rf"^## `magneton {name}`$(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert section, name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(word in section[1] for word in parameter.opts), f"{name} {parameter.name}"


def test_the_formats_page_holds_every_table_column_code_and_error(root: Path) -> None:
    text = (root / "docs" / "formats.md").read_text()
    for table in (*RUN_TABLES.values(), *DIFF_TABLES.values(), RUNS, *(v.table for v in VIEWS.values())):
        section = re.search(rf"^### `{table.name}`$(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, table.name
        assert all(f"| `{c.name}` |" in section[1] for c in table.columns), table.name
    for code in (*QUARANTINE_REASONS, *WARNING_CODES):
        assert f"| `{code}` |" in text
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.MagnetonError) and error is not errors.MagnetonError:
            assert f"| `{error.__name__}` |" in text


def test_the_guide_names_every_table_and_view() -> None:
    for name in (RUNS.name, *RUN_TABLES, *DIFF_TABLES, *VIEWS):
        assert f"`{name}`" in GUIDE, name


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    """Two small recordings that differ in one kernel, and their diff."""
    directory = tmp_path_factory.mktemp("guide")
    tables = small_tables()
    for op in tables["ops"]:
        op["input_dims"] = "[[2, 8], [8]]"
    a = write_recording(directory / "a", tables)
    b = write_recording(directory / "b", small_tables(gemm_ns=700), run="r" + "1" * 16)
    assert main(["diff", str(a), str(b), "-o", str(directory / "a-vs-b")]) == 0
    with Recordings([directory / "a-vs-b", a, b]) as both:
        yield both


@pytest.mark.parametrize("sql", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_of_the_guide_runs_and_finds_something(opened: Recordings, sql: str) -> None:
    values = {name: value for name, value in (("a", "small"), ("b", "small (2)")) if f"${name}" in sql}
    rows = opened.query(sql, values).read_all().to_pylist()
    assert any(value is not None for row in rows for value in row.values())


def test_the_comparison_of_the_guide_finds_the_difference(opened: Recordings) -> None:
    sql = next(example for example in EXAMPLES if "more_in_b_ns" in example)
    first = opened.query(sql, {"a": "small", "b": "small (2)"}).read_all().to_pylist()[0]
    assert first == {"name": "aten::addmm", "calls_a": 2, "calls_b": 2, "more_in_b_ns": 200}


def test_a_diff_opens_beside_its_recordings(opened: Recordings) -> None:
    regions = opened.query("SELECT DISTINCT diff FROM regions").read_all().to_pylist()
    assert regions == [{"diff": "a-vs-b"}]
    assert [r.run for r in opened.runs] == ["small", "small (2)"]


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    for page in [*root.glob("*.md"), *root.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
