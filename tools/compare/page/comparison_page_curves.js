// curves
