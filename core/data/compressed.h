#pragma once
// The bytes of a data file, unpacked while they are read: gzip, zstd and Parquet (its rows as JSON
// lines, core/data/parquet.h) are told by their first bytes, whatever the file is called. One block
// of 64 KiB packed and one unpacked are in memory (zstd adds its window, at most 128 MiB), so a
// file may be larger than memory, unpacked too. A UTF-8 byte order mark at the front is left out.
//
// A bomb costs no memory here. What unpacks to more than kMaxExpansion times its size is refused
// once it has given kFreeBytes, because nothing that people wrote packs like that and its records
// would fill the memory one by one.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <streambuf>

namespace moe::data {

enum class Packing { kNone, kGzip, kZstd, kParquet };

inline constexpr uint64_t kMaxExpansion = 500;
inline constexpr uint64_t kFreeBytes = uint64_t{256} << 20;

// The packed data are cut short, damaged or a bomb; the reader knows the line and adds it.
class BrokenStream : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct OpenFile {
  std::unique_ptr<std::streambuf> bytes;
  Packing packing = Packing::kNone;
};

// UserError: missing, a folder, no regular file, unreadable; Arrow, zip, bzip2 or xz by their first
// bytes, Parquet where it is not built in (the sentence says what to do with them). Reading from
// `bytes` throws BrokenStream.
OpenFile open_data_file(const std::filesystem::path& file);

// "gzip", "zstd", "Parquet" or "".
const char* packing_name(Packing packing);

}  // namespace moe::data
