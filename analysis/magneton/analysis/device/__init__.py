"""Device work that has no place in a tree of work: what was lost, and what belongs to nothing."""
