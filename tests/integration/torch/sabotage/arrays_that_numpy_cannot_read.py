"""A torch that was built for another numpy, as 2.1.2 is for numpy 2: the import only warns."""

import torch


def refuse(*arguments):
    raise RuntimeError("Numpy is not available")


torch.from_numpy = torch.Tensor.numpy = refuse
