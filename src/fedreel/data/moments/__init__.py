"""Moments of videos that sentences ask for: readers of public formats, features, words, and clients of them."""
