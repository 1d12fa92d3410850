"""What runs on a GPU: kernels, CUDA graphs, staging, and the way back to torch when a kernel fails."""
