"""The default type of numbers is float64."""

import jax

jax.config.update("jax_enable_x64", True)
