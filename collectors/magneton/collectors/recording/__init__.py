"""Writing a recording: the recorder that a program calls, settings (knobs), step times, files and manifest."""
