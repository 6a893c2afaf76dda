"""What the tasks over pictures and clips share."""
