"""Mutated inputs for every reader of files and every message: `make fuzz N=1000000`."""
