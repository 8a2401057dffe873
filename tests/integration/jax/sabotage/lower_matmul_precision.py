"""Products of float32 in bfloat16, as users of TPUs set it."""

import jax

jax.config.update("jax_default_matmul_precision", "bfloat16")
