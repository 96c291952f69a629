"""Who makes the runs: this process, several here, or a Dask cluster."""
