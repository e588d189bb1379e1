"""Any `nn.Module` as a network of a policy, with gradients from autograd."""
