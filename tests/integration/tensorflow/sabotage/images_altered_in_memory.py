"""Images of which one pixel is another on the device."""

import tensorflow as tf

real = tf.constant


def constant(values, *arguments, **options):
    if getattr(values, "ndim", 0) == 3 and values.dtype == "uint8":
        values = values.copy()
        values[0, 14, 14] ^= 1
    return real(values, *arguments, **options)


tf.constant = constant
