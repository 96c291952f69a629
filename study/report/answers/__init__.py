"""Pages of the answers of `size` and `tune`: a figure strip, one picture, then the tables behind it."""
