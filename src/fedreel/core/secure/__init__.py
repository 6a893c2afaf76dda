"""Secure sums: a server learns the sum of what a round's clients made, and of no single one (docs/secure-sums.md)."""
