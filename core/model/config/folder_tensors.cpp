#include "core/model/config/folder_tensors.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/io/file.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;
using at::Tensor;

template <typename From, typename To>
void convert_values(const std::byte* in, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From value = 0;
    std::memcpy(&value, in + i * sizeof(From), sizeof(From));
    const To converted = static_cast<float>(value);
    std::memcpy(out + i * sizeof(To), &converted, sizeof(To));
  }
}

// Calls body with a value of the C++ type of `dtype`.
template <typename Body>
void with_type(io::DType dtype, const Body& body) {
  switch (dtype) {
    case io::DType::kF32:
      return body(float());
    case io::DType::kBF16:
      return body(c10::BFloat16());
    default:
      return body(c10::Half());
  }
}

// Returns the index of the first Word of `bytes` with all bits of `exponent` set.
template <typename Word>
std::optional<size_t> find_all_ones(std::span<const std::byte> bytes, Word exponent) {
  constexpr size_t kBlock = 4096;
  const size_t count = bytes.size() / sizeof(Word);
  const auto is_found = [&](size_t index) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + index * sizeof(Word), sizeof(Word));
    return (word & exponent) == exponent;
  };
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    Word any = 0;
    for (size_t index = begin; index < end; ++index) {
      any |= is_found(index) ? 1 : 0;
    }
    for (size_t index = begin; any != 0 && index < end; ++index) {
      if (is_found(index)) {
        return index;
      }
    }
  }
  return std::nullopt;
}

// Returns the rank that writes each tensor: of the ranks that hold it, the one with the fewest
// bytes so far; -1 if every rank holds a part. A collective.
std::vector<int64_t> assign_writers(const std::vector<FolderTensor>& tensors,
                                    distributed::Comm& ranks) {
  std::string local;
  for (const auto& tensor : tensors) {
    local += tensor.values.defined() ? '1' : '0';
  }
  const auto holds = distributed::gather_texts(ranks, local);
  std::vector<int64_t> bytes(holds.size(), 0), writers;
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (tensors[index].begin) {
      writers.push_back(-1);
      continue;
    }
    int64_t best = -1;
    for (int64_t rank = 0; rank < ranks.size(); ++rank) {
      if (holds[rank].at(index) == '1' && (best < 0 || bytes[rank] < bytes[best])) {
        best = rank;
      }
    }
    MOE_CHECK(best >= 0, "no rank holds {}", tensors[index].info.name);
    bytes[best] += tensors[index].info.bytes();
    writers.push_back(best);
  }
  return writers;
}

void write_local_tensors(const fs::path& folder, const std::vector<io::Shard>& shards,
                         const std::vector<FolderTensor>& tensors,
                         const std::vector<int64_t>& writers, int64_t rank) {
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
      MOE_CHECK(tensor.values.defined(), "{} is another process's", tensor.info.name);
      const Tensor stored = tensor.values.to(at::kCPU, scalar_type(tensor.info.dtype)).contiguous();
      const auto begin = static_cast<uint64_t>(tensor.begin.value_or(0));
      patch->write(tensor.info.name, begin * io::dtype_bytes(tensor.info.dtype),
                   {static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()});
    }
    if (patch) {
      patch->finish();
    }
  }
}

}  // namespace

at::ScalarType scalar_type(io::DType dtype) {
  MOE_CHECK(io::is_floating(dtype), "weights of dtype {}", io::dtype_name(dtype));
  return dtype == io::DType::kF32   ? at::kFloat
         : dtype == io::DType::kF16 ? at::kHalf
                                    : at::kBFloat16;
}

void convert(std::span<const std::byte> in, io::DType from, std::span<std::byte> out,
             io::DType to) {
  MOE_CHECK(io::is_floating(from) && io::is_floating(to));
  const size_t count = in.size() / static_cast<size_t>(io::dtype_bytes(from));
  MOE_CHECK(out.size() == count * static_cast<size_t>(io::dtype_bytes(to)),
            "{} bytes for {} values", out.size(), count);
  with_type(from, [&](auto source) {
    with_type(to, [&](auto target) {
      convert_values<decltype(source), decltype(target)>(in.data(), out.data(), count);
    });
  });
}

std::optional<size_t> find_non_finite(std::span<const std::byte> bytes, io::DType dtype) {
  MOE_CHECK(io::is_floating(dtype));
  if (dtype == io::DType::kF32) {
    return find_all_ones<uint32_t>(bytes, 0x7f800000U);
  }
  return find_all_ones<uint16_t>(bytes, dtype == io::DType::kBF16 ? 0x7f80U : 0x7c00U);
}

void await_mark(const fs::path& folder, const std::string& mark, int64_t rank, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  std::error_code error;
  while (!fs::exists(folder / mark, error)) {
    USER_ERROR_IF(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > seconds,
        "rank {} does not see {}, which rank 0 created: all ranks write one folder; use an output "
        "folder on a file system that all ranks share",
        rank, folder.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

SharedFolder::SharedFolder(const fs::path& out, bool force, distributed::Comm& ranks)
    : ranks_(ranks) {
  constexpr double kAwaitSeconds = 10;  // network file systems cache names for some seconds
  std::string mark;
  run_on_first_rank([&] {
    staged_ = std::make_unique<io::StagedFolder>(out, force);
    path_ = fs::absolute(staged_->path());
    std::random_device random;  // no other run and no other machine has this name
    mark = fmt::format(".seen-by-all-{:08x}{:08x}", random(), random());
    io::write_file(path_ / mark, std::string());
  });
  path_ = distributed::gather_texts(ranks_, path_.string()).front();
  mark = distributed::gather_texts(ranks_, mark).front();
  run_on_all_ranks([&] { await_mark(path_, mark, ranks_.rank(), kAwaitSeconds); });
  run_on_first_rank([&] { fs::remove(path_ / mark); });
}

void SharedFolder::run_on_first_rank(const std::function<void()>& body) const {
  run_on_all_ranks([&] {
    if (ranks_.rank() == 0) {
      body();
    }
  });
}

void SharedFolder::run_on_all_ranks(const std::function<void()>& body) const {
  distributed::on_all_ranks(&ranks_, body);
}

void SharedFolder::commit() {
  ranks_.barrier();
  run_on_first_rank([&] { staged_->commit(); });
}

void write_tensors(const SharedFolder& folder, const std::vector<FolderTensor>& tensors,
                   uint64_t shard_bytes) {
  std::vector<io::TensorInfo> infos;
  for (const auto& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  const auto shards = io::plan_shards(infos, shard_bytes);
  folder.run_on_first_rank([&] {
    for (const auto& shard : shards) {
      io::create_safetensors(folder.path() / shard.file, shard.tensors);
    }
    io::write_index(folder.path(), shards);
  });
  const auto writers = assign_writers(tensors, folder.ranks());
  folder.run_on_all_ranks(
      [&] { write_local_tensors(folder.path(), shards, tensors, writers, folder.ranks().rank()); });
}

}  // namespace moe::model
