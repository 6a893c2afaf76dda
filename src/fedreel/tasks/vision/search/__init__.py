"""Search: which videos of a folder are most like a clip, or a sentence? For tasks that turn clips into vectors."""
