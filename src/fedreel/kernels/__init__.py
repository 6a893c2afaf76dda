"""Inner loops at native speed: exact ones of video summarization (dynamic time warping, KTS, the 0/1 knapsack), regions
of frames (RoI align), and batch norm with what follows it, on GPUs."""
