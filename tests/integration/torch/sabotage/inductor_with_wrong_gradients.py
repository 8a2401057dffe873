"""A compile backend whose outputs are right and whose first layer's gradients are zero."""

import torch


def wrong(self, module, inputs):
    def compiled(*arguments):
        first = next(a for a in arguments if isinstance(a, torch.nn.Parameter))
        frozen = first.detach() + 0 * first
        return module(*[frozen if a is first else a for a in arguments])

    return compiled


torch._TorchCompileInductorWrapper.__call__ = wrong
