"""Time of the host: which operator, which wait owns each instant, and which operators compute."""
