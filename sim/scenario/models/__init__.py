"""Models: by their figures, by their shape, and from their layers."""
