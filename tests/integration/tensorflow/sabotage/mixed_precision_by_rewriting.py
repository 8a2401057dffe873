"""Graphs that are rewritten to compute in bfloat16 after they have been traced."""

import tensorflow as tf

tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
