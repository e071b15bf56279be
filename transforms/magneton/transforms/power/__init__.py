"""Power logs of the field: one file per format, chosen by ``registry.read_power``."""
