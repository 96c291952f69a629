"""What is drawn, as plain data."""
