"""Energy of one operation from windows in which it ran many times, in place or alone."""
