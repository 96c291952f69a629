"""What is trained: a model by its figures, by its shape, from its layers, and lighter."""
