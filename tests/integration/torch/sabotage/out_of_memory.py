"""No more address space than there was when torch had been imported, and little besides."""

import re
import resource
from pathlib import Path

import torch

torch.set_num_threads(1)
size = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
limit = int(size[1]) * 1024 + (8 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
