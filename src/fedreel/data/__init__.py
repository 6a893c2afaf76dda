"""Data sets: which clips there are, how they are divided, what becomes of them on disk."""
