"""Readable forms of a diff. Each is made from ``diff.json`` alone."""
