"""Energy of windows, kernels, devices and tokens from power samples and counters, without a model of the sensor."""
