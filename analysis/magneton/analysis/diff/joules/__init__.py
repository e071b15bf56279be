"""Energy of both sides of a diff: joules of kernels, ledgers, what was served, and the conditions of the power."""
