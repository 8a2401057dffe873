"""A build that lists a GPU, and cannot compute on it."""

import tensorflow as tf

real = tf.config.list_physical_devices
gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

tf.sysconfig.get_build_info = lambda: {"is_cuda_build": True, "cuda_version": "12.5.1"}
tf.config.list_physical_devices = lambda kind=None: [gpu] if kind == "GPU" else real(kind)
tf.config.experimental.set_memory_growth = lambda *arguments: None
