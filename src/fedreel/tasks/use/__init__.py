"""What the verbs share that use a trained model: checks, class names, progress."""
