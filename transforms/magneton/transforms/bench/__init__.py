"""Results of serving benchmarks: one file per format, chosen by ``registry.read_bench``."""
