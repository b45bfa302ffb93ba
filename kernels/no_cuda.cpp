// Stands in for every *_cuda entry point in builds without CUDA.
