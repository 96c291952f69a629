"""Services: when requests come, how they are answered in batches, and how many replicas that takes."""
