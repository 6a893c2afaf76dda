"""Exact inner loops of video summarization at native speed: dynamic time warping, KTS, and the 0/1 knapsack."""
