"""A simulator of power sensors and the measurements behind the goals for energy. Everything simulated says so."""
