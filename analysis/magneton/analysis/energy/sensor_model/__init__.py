"""What a sensor shows of the true power, and what follows from its readings: classes of kernels told apart, totals with intervals."""
