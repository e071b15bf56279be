"""Events of one capture between reading and writing: kept in bounded memory, returned in order of time."""
