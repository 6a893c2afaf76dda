"""Image classification from few labels."""
