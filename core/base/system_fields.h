#pragma once
// What Linux tells of the machine and of this process in files of "KEY: value" lines.

#include <cstdint>
#include <string>

namespace moe {

// What follows the first "KEY...:" of the file; empty where there is none.
std::string system_field(const char* file, const std::string& key);

// The same of a value in kB ("VmRSS:   1234 kB"), in bytes; 0 where there is none.
uint64_t system_bytes(const char* file, const std::string& key);

}  // namespace moe
