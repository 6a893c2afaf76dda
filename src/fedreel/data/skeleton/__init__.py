"""Recordings of moving bodies: sensors' joints, readers of public formats, one form for all, and clients of them."""
