"""From two normalised recordings to a diff: regions, roll-ups, coverage, findings."""
