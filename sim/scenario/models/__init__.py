"""Models: by their figures, by their shape, from their layers, and compressed."""
