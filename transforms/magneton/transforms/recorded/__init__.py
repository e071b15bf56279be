"""What our own recorders leave beside traces: ready tables and captures of values."""
