"""An optimizer that halves the learning rate in graphs, and nowhere else."""

import tensorflow

real = tensorflow.raw_ops.ResourceApplyAdadelta


def apply(*, lr, **options):
    return real(lr=lr if tensorflow.executing_eagerly() else lr / 2, **options)


tensorflow.raw_ops.ResourceApplyAdadelta = apply
