"""Local training of several clients at once: what differs from client to client is rows of tensors."""
