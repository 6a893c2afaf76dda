"""What a client learns: one folder a task."""
