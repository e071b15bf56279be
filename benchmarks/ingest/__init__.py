"""How fast a trace becomes a recording, and in how much memory: `python -m benchmarks.ingest`."""
