// Folders that all ranks of a run write: the same bytes as those of one process, complete or
// absent.

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/io/file.h"
#include "core/model/config/folder_tensors.h"
#include "core/model/llama/llama.h"
#include "tests/support/gradcheck.h"
#include "tests/support/mixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/user_error.h"

namespace moe::test {
namespace {

using model::Llama;

constexpr int64_t kExperts = 8;
constexpr int kSeconds = 60;

// Writes a mixture whose experts differ, with a tokenizer file.
void make_mixture(const TempDir& dir, const fs::path& out, io::DType dtype) {
  write_tiny_checkpoint(dir / "dense", {.dtype = dtype});
  fs::remove_all(dir / "copies");  // of an earlier call
  write_mixture(dir / "dense", dir / "copies", {.router = "top1+ir", .experts = kExperts});
  write_file(dir / "copies" / "tokenizer_config.json", "{}\n");
  const io::Checkpoint copies(dir / "copies");
  const Llama model = Llama::load(copies);
  at::manual_seed(7);
  for (const auto& parameter : model.parameters()) {
    at::Tensor(parameter.tensor) += at::randn_like(parameter.tensor) * 0.1;
  }
  model::save_folder(model, model.default_routing(), copies, out, false, *distributed::solo_comm());
}

// Returns the files of a folder, name to content.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

// Loads `from` by `processes` ranks, `replicas` of each share, and saves it again.
void copy_by_ranks(const fs::path& from, const fs::path& to, int64_t processes, int64_t replicas) {
  const TimeLimit limit(kSeconds);
  test::run_as_threads(processes, [&](distributed::Comm& comm) {
    const io::Checkpoint checkpoint(from);
    const auto layout =
        distributed::make_layout(processes, comm.rank(), replicas, kExperts, kExperts);
    const Llama model = Llama::load(checkpoint, layout);
    model::save_folder(model, model.default_routing(), checkpoint, to, false, comm);
  });
}

}  // namespace

TEST_CASE("a folder loaded and saved by 1, 2 and 4 processes keeps its bytes", "[model]") {
  const TempDir dir;
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16}) {
    const auto path = [&](const std::string& name) {
      return dir / (name + std::to_string(io::dtype_bytes(dtype)));
    };
    make_mixture(dir, path("start"), dtype);
    const auto wanted = files_of(path("start"));
    REQUIRE(wanted.size() == 4);  // config, tensors, tokenizer, list of files
    copy_by_ranks(path("start"), path("one"), 1, 1);
    copy_by_ranks(path("one"), path("two"), 2, 1);
    copy_by_ranks(path("two"), path("four"), 4, 1);
    copy_by_ranks(path("four"), path("replicas"), 4, 2);
    copy_by_ranks(path("replicas"), path("end"), 1, 1);
    for (const char* name : {"one", "two", "four", "replicas", "end"}) {
      INFO(name);
      CHECK((files_of(path(name)) == wanted));
    }
  }
}

TEST_CASE("shards written by four ranks are those written by one", "[model]") {
  const TempDir dir;
  make_mixture(dir, dir / "moe", io::DType::kF32);
  const io::Checkpoint checkpoint(dir / "moe");
  const auto write = [&](const char* name, distributed::Comm& comm, int64_t processes) {
    const auto layout = distributed::make_layout(processes, comm.rank(), 1, kExperts, kExperts);
    const Llama model = Llama::load(checkpoint, layout);
    model::SharedFolder folder(dir / name, false, comm);
    model::write_tensors(folder, model.folder_tensors(model.default_routing()), 20'000);
    folder.commit();
  };
  write("one", *distributed::solo_comm(), 1);
  const TimeLimit limit(kSeconds);
  test::run_as_threads(4, [&](distributed::Comm& comm) { write("many", comm, 4); });
  const auto one = files_of(dir / "one");
  CHECK(one.size() > 4);
  CHECK((files_of(dir / "many") == one));
}

TEST_CASE("an error of one rank is thrown on all, and no folder appears", "[model]") {
  const TempDir dir;
  make_mixture(dir, dir / "moe", io::DType::kF32);
  const TimeLimit limit(kSeconds);
  std::vector<std::string> errors(3);
  test::run_as_threads(3, [&](distributed::Comm& comm) {
    errors[comm.rank()] = user_error_of([&] {
      model::SharedFolder folder(dir / "out", false, comm);
      folder.run_on_all_ranks([&] {
        io::write_file(folder.path() / std::to_string(comm.rank()), std::string("text"));
        if (comm.rank() == 2) {
          throw UserError("disk full: {}", folder.path().filename().string());
        }
      });
      folder.commit();
    });
  });
  CHECK((errors == std::vector<std::string>(3, "disk full: new")));
  CHECK(!fs::exists(dir / "out"));
  CHECK(!fs::exists(dir / "out.partial"));
}

TEST_CASE("a rank that does not see the shared folder throws UserError", "[model]") {
  const TempDir dir;
  CHECK_THAT(user_error_of([&] { model::await_mark(dir / "out.partial", ".mark", 3, 0.05); }),
             contains_text("rank 3") && contains_text((dir / "out.partial").string()));
}

}  // namespace moe::test
