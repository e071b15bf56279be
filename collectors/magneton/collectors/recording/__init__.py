"""Writing a recording: the recorder in a program, what was set (knobs), step times, files and manifest."""
