// By this a binary knows the library that was built with it.

extern "C" const char* moe_cuda_version() { return MOE_VERSION; }
