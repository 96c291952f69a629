"""The same policies in a real training job: sampler, weighted gradients, local steps, regrouping."""
