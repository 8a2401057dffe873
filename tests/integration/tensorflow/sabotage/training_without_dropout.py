"""Dropout that drops nothing."""

import tensorflow as tf

tf.nn.experimental.stateless_dropout = lambda values, *rest, **options: values
