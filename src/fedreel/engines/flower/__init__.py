"""Flower as transport: the same methods on its Ray simulation and, over SuperLink and SuperNodes, at real sites."""
