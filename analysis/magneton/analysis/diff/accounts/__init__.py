"""What becomes of all the time of a side: of its host, and of its devices."""
