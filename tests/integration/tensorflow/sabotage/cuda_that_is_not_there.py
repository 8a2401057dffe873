"""A build for the CPU that says that it is one for CUDA."""

import tensorflow as tf

tf.sysconfig.get_build_info = lambda: {"is_cuda_build": True, "cuda_version": "12.5.1"}
