"""Energy over windows of time, from power samples and energy counters."""
