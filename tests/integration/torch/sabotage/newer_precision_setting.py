"""float32 products in bfloat16, by the setting that torch means to replace the older one with."""

import torch

torch.backends.mkldnn.matmul.fp32_precision = "bf16"
