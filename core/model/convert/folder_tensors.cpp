#include "core/model/convert/folder_tensors.h"

#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/io/safetensors_writer.h"

namespace moe::model {

using at::Tensor;

namespace {

// As a file stores it, contiguous.
Tensor stored(const FolderTensor& tensor) {
  MOE_CHECK(tensor.values.defined(), "{} is another process's", tensor.info.name);
  return tensor.values.to(at::kCPU, scalar_type(tensor.info.dtype)).contiguous();
}

std::span<const std::byte> bytes_of(const Tensor& stored) {
  return {static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()};
}

// The rank that writes each tensor: of those that hold all of it, the one with the fewest bytes so
// far. A collective.
std::vector<int64_t> writers_of(const std::vector<FolderTensor>& tensors,
                                distributed::Comm& ranks) {
  std::string local;
  for (const auto& tensor : tensors) {
    local += tensor.values.defined() ? '1' : '0';
  }
  const auto holds = distributed::gather_texts(ranks, local);
  std::vector<int64_t> bytes(holds.size(), 0), writers;
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (tensors[index].begin) {
      writers.push_back(-1);  // each its part
      continue;
    }
    int64_t best = -1;
    for (int64_t rank = 0; rank < ranks.size(); ++rank) {
      if (holds[rank].at(index) == '1' && (best < 0 || bytes[rank] < bytes[best])) {
        best = rank;
      }
    }
    MOE_CHECK(best >= 0, "nobody holds {}", tensors[index].info.name);
    bytes[best] += tensors[index].info.bytes();
    writers.push_back(best);
  }
  return writers;
}

void make_files(const std::filesystem::path& folder, const std::vector<io::Shard>& shards) {
  for (const auto& shard : shards) {
    io::create_safetensors(folder / shard.file, shard.tensors);
  }
  io::write_index(folder, shards);
}

// The tensors of `rank` in all shards.
void write_mine(const std::filesystem::path& folder, const std::vector<io::Shard>& shards,
                const std::vector<FolderTensor>& tensors, const std::vector<int64_t>& writers,
                int64_t rank) {
  size_t index = 0;
  for (const auto& shard : shards) {
    std::optional<io::SafetensorsPatch> patch;
    for (const size_t end = index + shard.tensors.size(); index < end; ++index) {
      const FolderTensor& tensor = tensors[index];
      if (tensor.begin ? tensor.values.numel() == 0 : writers[index] != rank) {
        continue;
      }
      if (!patch) {
        patch.emplace(folder / shard.file);
      }
      const auto begin = static_cast<uint64_t>(tensor.begin.value_or(0));
      patch->write(tensor.info.name, begin * io::dtype_bytes(tensor.info.dtype),
                   bytes_of(stored(tensor)));
    }
    if (patch) {
      patch->finish();
    }
  }
}

}  // namespace

at::ScalarType scalar_type(io::DType dtype) {
  switch (dtype) {
    case io::DType::kF32:
      return at::kFloat;
    case io::DType::kF16:
      return at::kHalf;
    case io::DType::kBF16:
      return at::kBFloat16;
    default:
      MOE_CHECK(false, "weights of dtype {}", io::dtype_name(dtype));
  }
}

std::vector<io::TensorSource> sources_of(const std::vector<FolderTensor>& tensors) {
  std::vector<io::TensorSource> sources;
  for (const auto& tensor : tensors) {
    MOE_CHECK(!tensor.begin, "{} lies on several ranks", tensor.info.name);
    sources.push_back({tensor.info, [tensor](io::SafetensorsWriter& writer) {
                         const Tensor numbers = stored(tensor);
                         writer.write(bytes_of(numbers));
                       }});
  }
  return sources;
}

void write_tensors(const SharedFolder& folder, const std::vector<FolderTensor>& tensors,
                   uint64_t shard_bytes) {
  std::vector<io::TensorInfo> infos;
  for (const auto& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  const auto shards = io::plan_shards(infos, shard_bytes);
  folder.by_first([&] { make_files(folder.path(), shards); });
  const auto writers = writers_of(tensors, folder.ranks());
  folder.by_all(
      [&] { write_mine(folder.path(), shards, tensors, writers, folder.ranks().rank()); });
}

}  // namespace moe::model
