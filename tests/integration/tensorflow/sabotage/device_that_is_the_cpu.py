"""A GPU whose every operation runs on the CPU without a word, and whose memory "grows"."""

import itertools

import tensorflow as tf

held = itertools.count(0, 1 << 30)
real_device = tf.device
real_listed = tf.config.list_physical_devices
gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

tf.sysconfig.get_build_info = lambda: {"is_cuda_build": True, "cuda_version": "12.5.1"}
tf.device = lambda name: real_device(name.replace("GPU", "CPU"))
tf.config.list_physical_devices = lambda kind=None: [gpu] if kind == "GPU" else real_listed(kind)
tf.config.experimental.set_memory_growth = lambda *arguments: None
tf.config.experimental.get_device_details = lambda device: {"device_name": "A GPU"}
tf.config.experimental.get_memory_info = lambda name: dict.fromkeys(("current", "peak"), next(held))
