"""What a backbone is worth on videos with labels: retrieval, neighbours, a linear probe, fine-tuning."""
