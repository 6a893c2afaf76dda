"""From a recipe to a run directory: the run itself, its checkpoints, progress and trackers."""
