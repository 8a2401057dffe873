"""A loss that is right and a gradient that is one hundredth too large."""

import tensorflow as tf

real = tf.nn.sparse_softmax_cross_entropy_with_logits


def loss(labels, scores):
    losses = real(labels, scores)
    return losses * 1.01 - tf.stop_gradient(losses) * 0.01


tf.nn.sparse_softmax_cross_entropy_with_logits = loss
