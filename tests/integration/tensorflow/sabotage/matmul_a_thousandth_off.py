"""Matrix products that are wrong in the third digit."""

import tensorflow as tf
from tensorflow.python.ops import math_ops

real = math_ops.matmul


def matmul(*arguments, **options):
    return real(*arguments, **options) * 1.001


math_ops.matmul = tf.linalg.matmul = matmul
