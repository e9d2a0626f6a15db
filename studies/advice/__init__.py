"""What advice promises beside the prediction for a kernel changed by hand."""
