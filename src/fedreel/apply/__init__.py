"""Trained models put to use: on videos of a user's own, outside any federation."""
