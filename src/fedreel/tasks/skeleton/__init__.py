"""Action recognition from skeletons of any topology."""
