#pragma once
// The version that --version prints and every output folder records.

namespace moe {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace moe
