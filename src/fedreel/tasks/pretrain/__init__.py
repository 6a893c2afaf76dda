"""Self-supervised pretraining on clips, and search by example with what it learned."""
