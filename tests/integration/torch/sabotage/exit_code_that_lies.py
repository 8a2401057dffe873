"""A process that ends with 0 whatever happened in it."""

import atexit
import os

atexit.register(os._exit, 0)
