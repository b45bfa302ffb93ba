// Stands in for parquet_load.cpp in builds without MOE_PARQUET.

#include "core/base/error.h"
#include "core/data/parquet.h"

namespace moe::data {

std::unique_ptr<std::streambuf> open_parquet(const std::filesystem::path& file) {
  throw UserError(
      "{0}: a Parquet file, and this moe was built without MOE_PARQUET; convert it: python3 -c "
      "\"import json, pyarrow.parquet as p; [print(json.dumps(r)) for b in "
      "p.ParquetFile('{0}').iter_batches() for r in b.to_pylist()]\" > data.jsonl",
      file.string());
}

}  // namespace moe::data
