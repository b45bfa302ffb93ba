#pragma once
// Parquet files as JSON lines, a line a row: what reads records then needs to know nothing of them.
// Row N of the file is its line N in errors.
//
// The Arrow libraries that do the work are large and wanted by few, so they stand behind a shared
// object of their own (parquet.cpp -> libmoe_parquet.so) that is loaded when the first Parquet file
// is met; nothing else links them. Built with MOE_PARQUET, moe has parquet_load.cpp; without it
// no_parquet.cpp, whose error says how to convert the file.

#include <filesystem>
#include <memory>
#include <streambuf>

namespace moe::data {

// UserError: not built in, the shared object cannot be loaded, or the file is no Parquet file.
// Reading from the buffer throws BrokenStream where a row cannot be read.
std::unique_ptr<std::streambuf> open_parquet(const std::filesystem::path& file);

}  // namespace moe::data

// What libmoe_parquet.so gives; the caller owns the result. Throws as open_parquet does.
extern "C" std::streambuf* moe_open_parquet(const char* file);
