"""Running one operation again and again so that a sensor can see it: windows, copies, and one module per framework."""
