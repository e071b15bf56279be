"""Power logs of other tools: one file per format, chosen by ``registry.read_power``."""
