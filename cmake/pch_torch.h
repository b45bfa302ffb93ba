// Owns the precompiled header of files that speak LibTorch. Every one of them pays for all that
// stands here, seconds in what GCC instantiates anew in each: torch/types.h and custom_function.h
// would add half as much again.
#pragma once
#include <ATen/ATen.h>

#include "cmake/pch_plain.h"
