"""The exchange: what passes between server and clients, and nothing else."""
