"""What the kernel does to a process when memory runs out: the end, without a word."""

import os
import signal

import torch

torch.optim.Adadelta.step = lambda self, closure=None: os.kill(os.getpid(), signal.SIGKILL)
