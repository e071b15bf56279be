"""Events of one capture between reading and writing: where they wait, and how they come out in order."""
