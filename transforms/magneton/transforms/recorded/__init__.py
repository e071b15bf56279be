"""Raw files of our own recorders: finished tables and captures of values."""
