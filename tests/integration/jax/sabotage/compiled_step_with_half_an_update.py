"""A compiler whose training step, and nothing else, loses half of each update."""

import jax

real = jax.stages.Lowered.compile


class Halved:
    """An executable that is right but for the weights."""

    def __init__(self, right):
        self.right = right

    def __getattr__(self, name):
        return getattr(self.right, name)

    def __call__(self, state, *more):
        before = jax.tree.map(jax.numpy.copy, state.weights)
        after, loss = self.right(state, *more)
        weights = jax.tree.map(lambda old, new: (old + new) / 2, before, after.weights)
        return after._replace(weights=weights), loss


jax.stages.Lowered.compile = lambda self, *more, **options: Halved(real(self, *more, **options))
