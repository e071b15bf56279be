"""Matching of two programs by the values that flow through them: fingerprints in, matched regions out."""
