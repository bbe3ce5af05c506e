"""What a draw is: kernels and adaptation, written for one chain."""
