"""What the machine gives: files written whole, processes, devices, a cache."""
