#pragma once
// CUDA_CHECK around every call and after every launch: a failing machine is a sentence with the
// command in it.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#define CUDA_CHECK(command)                                                                    \
  do {                                                                                         \
    const cudaError_t cuda_check_status = (command);                                           \
    if (cuda_check_status != cudaSuccess) {                                                    \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + \
                               #command + ": " + cudaGetErrorString(cuda_check_status));       \
    }                                                                                          \
  } while (false)
