"""Measures that several tasks share."""
