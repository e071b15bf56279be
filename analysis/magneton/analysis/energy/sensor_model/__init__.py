"""A model of how a sensor turns power into readings, and the energies that follow: by class of kernels, and totals with intervals."""
