"""What the verbs share that use a trained model: options, results, places, whose model, class names."""
