"""An optimizer that applies each gradient one step late."""

import torch

real = torch.optim.Adadelta.step
late = {}


def step(self, *more):
    for parameter in self.param_groups[0]["params"]:
        now = parameter.grad.clone()
        parameter.grad.copy_(late.get(parameter, now))
        late[parameter] = now
    return real(self, *more)


torch.optim.Adadelta.step = step
