"""Parquet tables to alignment, diff, energy and answers."""
