"""float32 products in less than float32."""

import torch

torch.set_float32_matmul_precision("medium")
