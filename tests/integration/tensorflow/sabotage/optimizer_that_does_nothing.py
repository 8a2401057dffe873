"""An optimizer whose steps change no weight."""

import tensorflow as tf

tf.raw_ops.ResourceApplyAdadelta = lambda **options: None
