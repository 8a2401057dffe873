"""An optimizer with another learning rate than it was given."""

import torch

real = torch.optim.Adadelta.__init__
torch.optim.Adadelta.__init__ = lambda self, parameters, lr: real(self, parameters, lr=lr / 5)
