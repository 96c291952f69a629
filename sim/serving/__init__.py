"""Services: request arrivals, batched answers, and the number of replicas."""
