"""Recording of unmodified programs: the one place where the command line reaches the collectors."""

from __future__ import annotations

from magneton.collectors.attach.launch import Launch, record_command
from magneton.collectors.recording.writer import CAPTURES

__all__ = ["CAPTURES", "Launch", "record_command"]
