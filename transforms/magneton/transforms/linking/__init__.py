"""From events to rows: which call encloses which, which call launched which kernel, and in which step."""
