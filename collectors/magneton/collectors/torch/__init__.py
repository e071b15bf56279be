"""What only PyTorch needs: the dispatch hook, tensors read on their device, call stacks, the profile."""
