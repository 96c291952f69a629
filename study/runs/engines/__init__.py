"""Engines that make the runs: this process, several processes, or a Dask cluster."""
