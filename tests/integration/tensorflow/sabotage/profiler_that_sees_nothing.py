"""A profiler that has seen nothing."""

import tensorflow as tf

tf.profiler.experimental.start = lambda *arguments, **options: None
tf.profiler.experimental.stop = lambda *arguments, **options: None
