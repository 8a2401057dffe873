"""Convolutions whose forward is right and whose weights get a gradient of zero."""

import tensorflow as tf

real = tf.nn.conv2d


def conv2d(images, weight, *rest, **options):
    weight = tf.convert_to_tensor(weight)
    return real(images, tf.stop_gradient(weight) + 0 * weight, *rest, **options)


tf.nn.conv2d = conv2d
