"""Action recognition from clips."""
