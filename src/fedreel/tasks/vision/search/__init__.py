"""Search by example: which videos of a folder are most like a clip? For tasks that turn clips into vectors."""
