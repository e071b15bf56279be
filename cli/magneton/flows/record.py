"""Recording of unmodified programs: the one place where the command line reaches the collectors."""

from __future__ import annotations

from magneton.collectors.attach.launch import CAPTURES, Launch, record_command

__all__ = ["CAPTURES", "Launch", "record_command"]
