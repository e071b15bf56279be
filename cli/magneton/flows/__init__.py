"""What strings the stages together; the public Python API."""
