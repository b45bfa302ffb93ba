// Folders that all ranks of a run write: the same bytes as those of one process, complete or
// absent.

#include <mutex>

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/io/file.h"
#include "core/model/config/folder_tensors.h"
#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/matchers.h"
#include "tests/support/mixture.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temp_dir.h"
#include "tests/support/time_limit.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::test {
namespace {

using model::Llama;
namespace fs = std::filesystem;

constexpr int64_t kExperts = 8;
constexpr int kSeconds = 60;

// Writes a mixture whose experts differ, with a tokenizer file.
void make_mixture(const TempDir& dir, const fs::path& out, io::DType dtype) {
  TinyCheckpoint shape;
  shape.dtype = dtype;
  write_tiny_checkpoint(dir / "dense", shape);
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

// Returns the tensors of a whole model as io::write_tensors takes them.
std::vector<io::TensorSource> tensor_sources(const Llama& model) {
  std::vector<io::TensorSource> sources;
  for (const auto& [info, values, begin] : model.folder_tensors(model.default_routing())) {
    const at::Tensor stored = values.to(model::scalar_type(info.dtype)).contiguous();
    sources.push_back(
        {info, [stored](io::SafetensorsWriter& writer) {
           writer.write({static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()});
         }});
  }
  return sources;
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

// Runs `body` on three ranks. Returns the message of the UserError of each, or "".
std::vector<std::string> errors_of(const std::function<void(distributed::Comm&)>& body) {
  const TimeLimit limit(kSeconds);
  std::vector<std::string> errors(3);
  test::run_as_threads(3, [&](distributed::Comm& comm) {
    errors[comm.rank()] = user_error_of([&] { body(comm); });
  });
  return errors;
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
  const Llama whole = Llama::load(checkpoint);
  fs::create_directories(dir / "one");
  io::write_tensors(dir / "one", tensor_sources(whole), 20'000);
  const TimeLimit limit(kSeconds);
  test::run_as_threads(4, [&](distributed::Comm& comm) {
    const auto layout = distributed::make_layout(4, comm.rank(), 1, kExperts, kExperts);
    const Llama model = Llama::load(checkpoint, layout);
    model::SharedFolder folder(dir / "many", false, comm);
    model::write_tensors(folder, model.folder_tensors(model.default_routing()), 20'000);
    folder.commit();
  });
  const auto one = files_of(dir / "one");
  CHECK(one.size() > 4);
  auto many = files_of(dir / "many");
  CHECK(many.erase(".moe-output") == 1);  // of a committed folder alone
  CHECK((many == one));
}

TEST_CASE("adapters merged by four ranks equal those merged by one", "[model]") {
  const TempDir dir;
  make_mixture(dir, dir / "moe", io::DType::kF32);
  const io::Checkpoint checkpoint(dir / "moe");
  const auto with_adapters = [&](const distributed::Layout& layout) {
    Llama model = Llama::load(checkpoint, layout);
    model.add_lora({2, 4, {"attention", "ffn"}}, 3);
    for (const auto& parameter : model.parameters()) {
      if (parameter.name.ends_with(".lora_b")) {
        at::Tensor(parameter.tensor).fill_(0.01);
      }
    }
    return model;
  };
  const Llama whole = with_adapters({});
  model::save_folder(whole, whole.default_routing(), checkpoint, dir / "one", false,
                     *distributed::solo_comm());
  const TimeLimit limit(kSeconds);
  test::run_as_threads(4, [&](distributed::Comm& comm) {
    const Llama model =
        with_adapters(distributed::make_layout(4, comm.rank(), 1, kExperts, kExperts));
    model::save_folder(model, model.default_routing(), checkpoint, dir / "many", false, comm);
  });
  const auto one = Llama::load(io::Checkpoint(dir / "one")).parameters();
  const auto many = Llama::load(io::Checkpoint(dir / "many")).parameters();
  for (size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);  // a weight and one product of two terms: 3 roundings of numbers below 1
    CHECK(distance(many[i].tensor, one[i].tensor) < 3 * 6e-8);
  }
}

TEST_CASE("an error of one rank is thrown on all, and no folder appears", "[model]") {
  const TempDir dir;
  make_mixture(dir, dir / "moe", io::DType::kF32);
  const auto errors = errors_of([&](distributed::Comm& comm) {
    model::SharedFolder folder(dir / "out", false, comm);
    folder.run_on_all_ranks([&] {
      io::write_file(folder.path() / std::to_string(comm.rank()), std::string("text"));
      if (comm.rank() == 2) {
        throw UserError("disk full: {}", folder.path().filename().string());
      }
    });
    folder.commit();
  });
  CHECK((errors == std::vector<std::string>(3, "disk full: new")));
  CHECK(!fs::exists(dir / "out"));
  CHECK(!fs::exists(dir / "out.partial"));
}

TEST_CASE("a mismatch of tensors between ranks is a UserError on all", "[model]") {
  const TempDir dir;
  make_mixture(dir, dir / "moe", io::DType::kF32);
  const TimeLimit limit(kSeconds);
  std::vector<std::string> errors(2);
  test::run_as_threads(2, [&](distributed::Comm& comm) {
    const io::Checkpoint checkpoint(dir / "moe");
    const auto layout = distributed::make_layout(2, comm.rank(), 1, kExperts, kExperts);
    const Llama model = Llama::load(checkpoint, layout);
    errors[comm.rank()] = user_error_of([&] {
      model::SharedFolder folder(dir / "out", false, comm);
      auto tensors = model.folder_tensors(model.default_routing());
      // The tensor of the second rank is not in the layout of the first.
      tensors.back().info.name += comm.rank() == 0 ? "" : ".other";
      tensors.back().values = comm.rank() == 0 ? at::Tensor() : tensors.back().values;
      model::write_tensors(folder, tensors, 1 << 30);
      folder.commit();
    });
  });
  CHECK(errors[0].find(".other'") != std::string::npos);
  CHECK(errors[0] == errors[1]);
  CHECK(!fs::exists(dir / "out"));
}

TEST_CASE("an existing output is refused on all ranks, or replaced", "[model]") {
  const TempDir dir;
  fs::create_directories(dir / "out");
  for (const auto& error :
       errors_of([&](distributed::Comm& comm) { model::SharedFolder(dir / "out", false, comm); })) {
    CHECK_THAT(error, contains_text((dir / "out").string()) && contains_text("--force"));
  }
  const auto errors = errors_of([&](distributed::Comm& comm) {
    model::SharedFolder folder(dir / "out", true, comm);
    folder.run_on_first_rank([&] { io::write_file(folder.path() / "new", std::string("text")); });
    folder.commit();
  });
  CHECK((errors == std::vector<std::string>(3)));
  CHECK((files_of(dir / "out") == std::map<std::string, std::string>{
                                      {".moe-output", "moe output 1\n4 new\n"}, {"new", "text"}}));
}

TEST_CASE("a rank that does not see the shared folder throws UserError", "[model]") {
  const TempDir dir;
  CHECK_THAT(user_error_of([&] { model::await_mark(dir / "out.partial", ".mark", 3, 0.05); }),
             contains_text("rank 3") && contains_text((dir / "out.partial").string()));
}

}  // namespace moe::test
