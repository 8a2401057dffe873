"""Convolutions in less than float32, whose results are float32 all the same."""

import tensorflow as tf

real = tf.nn.conv2d


def conv2d(images, weight, *rest, **options):
    if images.dtype != tf.float32:
        return real(images, weight, *rest, **options)
    lowered = (tf.cast(array, tf.bfloat16) for array in (images, weight))
    return tf.cast(real(*lowered, *rest, **options), tf.float32)


tf.nn.conv2d = conv2d
