"""Labels in another order than the images, whatever the files say."""

import tensorflow as tf

real = tf.constant


def constant(values, *arguments, **options):
    if getattr(values, "ndim", 0) == 1 and values.max() == 9:
        values = values.take(range(-1, len(values) - 1))
    return real(values, *arguments, **options)


tf.constant = constant
