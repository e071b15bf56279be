"""One command per file; its docstring is what ``--help`` shows.

A command imports its implementation inside its function. So ``--help`` and shell completion do not wait for the SQL engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magneton.cli.commands.diff import diff
from magneton.cli.commands.info import info
from magneton.cli.commands.normalize import normalize
from magneton.cli.commands.record import record
from magneton.cli.commands.repeat import repeat
from magneton.cli.commands.sensors import sensors
from magneton.cli.commands.sql import sql
from magneton.cli.commands.tables import tables

# In the order in which a user needs them.
COMMANDS: tuple[Callable[..., Any], ...] = (record, normalize, diff, info, sql, tables, sensors, repeat)
