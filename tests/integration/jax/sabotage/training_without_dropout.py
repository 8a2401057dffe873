"""Random masks that keep everything."""

import jax

jax.random.bernoulli = lambda key, share=0.5, shape=(): jax.numpy.ones(shape, bool)
