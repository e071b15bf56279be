"""From bytes to text and numbers: compression, JSON arrays cut into events, exact decimals, local times."""
