"""Labelled pairs of programs, and what says how well a matcher lines them up."""
