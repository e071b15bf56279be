"""Functions that call the stages one after the other; the public Python API."""
