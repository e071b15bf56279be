"""Measures of matching, reading, recording and energy. Each module says what it needs beside the core."""
