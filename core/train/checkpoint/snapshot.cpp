#include "core/train/checkpoint/snapshot.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/io/checksums.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "core/model/config/folder_tensors.h"

namespace moe::train {
namespace {

using at::Tensor;

namespace fs = std::filesystem;

constexpr const char* kTensors = "state.safetensors";
constexpr const char* kState = "state.json";

OrderedJson to_json(const TrainState& state) {
  return {{"format", 1},
          {"step", state.step},
          {"total_tokens", state.total_tokens},
          {"skipped_steps", state.skipped_steps},
          {"skipped_outliers", state.skipped_outliers},
          {"steps_without_targets", state.steps_without_targets},
          {"outliers",
           {{"losses", state.outliers.losses},
            {"norms", state.outliers.norms},
            {"in_a_row", state.outliers.in_a_row}}},
          {"lambda", state.lambda},
          {"group_tokens", state.group_tokens},
          {"cursor",
           {{"epoch", state.cursor.epoch},
            {"example", state.cursor.example},
            {"offset", state.cursor.offset}}}};
}

std::vector<double> read_values(const Json& json, const char* key, const std::string& where) {
  const Json array = json.value(key, Json::array());
  USER_ERROR_IF(!array.is_array() || std::ssize(array) > kOutlierWindow ||
                    !std::ranges::all_of(array, &Json::is_number),
                "{}: '{}' must be at most {} numbers", where, key, kOutlierWindow);
  return array.get<std::vector<double>>();
}

OutlierWindow read_outliers(const Json& state, const std::string& file) {
  const std::string where = file + ": outliers";
  const Json json = state.value("outliers", Json::object());
  USER_ERROR_IF(!json.is_object(), "{}: must be an object", where);
  OutlierWindow window{read_values(json, "losses", where), read_values(json, "norms", where),
                       get_int(json, "in_a_row", where, 0)};
  USER_ERROR_IF(window.in_a_row < 0 || window.in_a_row > kMaxConsecutiveOutliers,
                "{}: 'in_a_row' is {}, it must be 0 to {}", where, window.in_a_row,
                kMaxConsecutiveOutliers);
  USER_ERROR_IF(window.losses.size() != window.norms.size(),
                "{}: {} losses and {} norms are not of the same steps", where, window.losses.size(),
                window.norms.size());
  return window;
}

constexpr std::string_view kWeight = "weight.", kUpdates = "updates.";

// Returns the weights and the optimizer's state of this process. The tensors are not copied.
std::vector<Slice> training_state(const model::Llama& model, const AdamW& optimizer) {
  std::vector<Slice> all = held_slices(model.parameters(), model.layout());
  for (auto& slice : all) {
    slice.name.insert(0, kWeight);
  }
  std::ranges::move(optimizer.state(), std::back_inserter(all));
  return all;
}

io::DType stored_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? io::DType::kBF16 : io::DType::kF32;
}

// Returns the part of `state` that this process writes. A weight that several processes hold is
// divided among them. Rank 0 writes the update counts.
std::vector<Slice> own_part(const std::vector<Slice>& state,
                            const std::vector<model::NamedParameter>& parameters,
                            distributed::World& world) {
  std::vector<Slice> own;
  for (size_t i = 0; i < state.size(); ++i) {
    Slice slice = state[i];
    if (i < parameters.size() && !parameters[i].shard.defined()) {  // the weights come first
      const distributed::Part part(slice.values.numel(), parameter_holders(parameters[i], world));
      slice.values = slice.values.view({-1}).narrow(0, part.begin, part.size());
      slice.begin += part.begin;
    } else if (slice.name.starts_with(kUpdates) && !world.layout.is_rank_zero()) {
      continue;
    }
    own.push_back(std::move(slice));
  }
  return own;
}

}  // namespace

Snapshot::Snapshot(const model::Llama& model, const AdamW& optimizer,
                   const model::RoutingOptions& routing,
                   const model::LossCoefficients& coefficients, const TrainState& state)
    : model_(model.clone(at::kCPU)), routing_(routing), coefficients_(coefficients), state_(state) {
  for (Slice& slice : training_state(model_, optimizer)) {
    if (!slice.name.starts_with(kWeight)) {
      slice.values = slice.values.to(at::kCPU, slice.values.scalar_type(), false, /*copy=*/true);
    }
    slices_.push_back(std::move(slice));
  }
}

void Snapshot::write(const io::Checkpoint& parent, const fs::path& out, distributed::World& world,
                     const AddFiles& add_files) const {
  model::SharedFolder folder(out, /*force=*/false, world.all);
  model::write_folder(model_, routing_, parent, folder, coefficients_);
  const fs::path tensors = folder.path() / kTensors;
  folder.run_on_first_rank([&] {
    std::vector<io::TensorInfo> infos;
    for (const auto& slice : slices_) {
      infos.push_back({slice.name, stored_type(slice.values), slice.shape});
    }
    io::create_safetensors(tensors, infos);
  });
  folder.run_on_all_ranks([&] {
    io::SafetensorsPatch patch(tensors);
    for (const auto& slice : own_part(slices_, model_.parameters(), world)) {
      const Tensor& values = slice.values;
      patch.write(slice.name, static_cast<uint64_t>(slice.begin) * values.element_size(),
                  {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    }
    patch.finish();
  });
  folder.run_on_first_rank([&] {
    io::write_file(folder.path() / kState, to_json(state_).dump(2) + "\n");
    if (add_files) {
      add_files(folder.path());
    }
    io::write_checksums(folder.path());
  });
  folder.commit();
}

TrainState restore(const fs::path& folder, model::Llama& model, AdamW& optimizer) {
  USER_ERROR_IF(!fs::exists(folder / kTensors) || !fs::exists(folder / kState),
                "{}: has no {}, so training cannot be resumed from it; start a new run from it "
                "instead (moe train {} -o ANOTHER)",
                folder.string(), fs::exists(folder / kTensors) ? kState : kTensors,
                folder.string());
  const at::NoGradGuard no_gradients;
  const io::SafetensorsFile file(folder / kTensors);
  const auto states = training_state(model, optimizer);
  USER_ERROR_IF(model.layout().is_rank_zero() && file.tensors().size() != states.size(),
                "{}: has {} tensors, this model and optimizer have {}; it is another run's",
                file.path().string(), file.tensors().size(), states.size());
  std::map<std::string, io::DType> types;
  for (const auto& info : file.tensors()) {
    types[info.name] = info.dtype;
  }
  for (const auto& [name, tensor, shape, begin] : states) {
    const size_t bytes = file.bytes(name).size();
    const size_t expected_bytes =
        static_cast<size_t>(c10::multiply_integers(shape)) * tensor.element_size();
    USER_ERROR_IF(types[name] != stored_type(tensor), "{}: '{}' is {}, this run keeps it in {}; {}",
                  file.path().string(), name, io::dtype_name(types[name]),
                  io::dtype_name(stored_type(tensor)),
                  name.starts_with("exp_avg")
                      ? "give the --optimizer-state that it was saved with, or start a new run "
                        "from the folder's weights"
                      : "it is another run's");
    USER_ERROR_IF(bytes != expected_bytes,
                  "{}: '{}' has {} bytes, this model has {}; it is another run's",
                  file.path().string(), name, bytes, expected_bytes);
  }
  const TrainState state = read_train_state(folder);
  for (const auto& [name, tensor, shape, begin] : states) {  // copies after all checks
    const auto bytes = file.bytes(name).subspan(static_cast<size_t>(begin) * tensor.element_size(),
                                                tensor.nbytes());
    void* data = const_cast<std::byte*>(bytes.data());  // only read
    tensor.copy_(at::from_blob(data, tensor.sizes(), at::TensorOptions(tensor.scalar_type())));
  }
  return state;
}

fs::path train_state_file(const fs::path& checkpoint) { return checkpoint / kState; }

TrainState read_train_state(const fs::path& folder) {
  const std::string where = train_state_file(folder).string();
  const Json json = read_json(where, uint64_t{1} << 20);
  USER_ERROR_IF(get_int(json, "format", where) != 1, "{}: format {} is of another version of moe",
                where, json["format"].dump());
  const auto get_count = [&](const char* key, std::optional<int64_t> fallback = {}) {
    const int64_t count = get_int(json, key, where, fallback);
    USER_ERROR_IF(count < 0, "{}: '{}' is {}, it must not be negative", where, key, count);
    return count;
  };
  TrainState state;
  state.step = get_count("step");
  state.total_tokens = get_count("total_tokens");
  state.skipped_steps = get_count("skipped_steps", 0);
  state.skipped_outliers = get_count("skipped_outliers", 0);
  state.steps_without_targets = get_count("steps_without_targets", 0);
  state.outliers = read_outliers(json, where);
  state.lambda = get_double(json, "lambda", where);
  USER_ERROR_IF(state.lambda < 0, "{}: 'lambda' is {}, it must not be negative", where,
                state.lambda);
  state.group_tokens = get_count("group_tokens");
  const Json cursor = json.value("cursor", Json::object());
  const std::string in_cursor = where + ": cursor";
  state.cursor = {get_int(cursor, "epoch", in_cursor), get_int(cursor, "example", in_cursor),
                  get_int(cursor, "offset", in_cursor)};
  return state;
}

Saver::Saver(const io::Checkpoint& parent, distributed::World& world,
             std::function<void(const fs::path&)> on_saved, std::function<void(bool)> on_saving)
    : parent_(parent),
      world_(world),
      on_saved_(std::move(on_saved)),
      on_saving_(std::move(on_saving)) {}

Saver::~Saver() {
  if (writing_.valid()) {
    writing_.wait();
  }
}

void Saver::save(Snapshot snapshot, const fs::path& out, AddFiles add_files) {
  wait();
  out_ = out;
  fs::create_directories(out.parent_path());
  const bool is_collective = world_.layout.processes > 1;  // written by this thread
  writing_ = std::async(is_collective ? std::launch::deferred : std::launch::async,
                        [this, snapshot = std::move(snapshot), out, add = std::move(add_files)] {
                          on_saving_(true);
                          const std::shared_ptr<void> saving(
                              nullptr, [this](void* /*none*/) { on_saving_(false); });
                          snapshot.write(parent_, out, world_, add);
                        });
  if (is_collective) {
    wait();
  }
}

void Saver::wait() {
  if (!writing_.valid()) {
    return;
  }
  writing_.get();  // throws the exception of write()
  on_saved_(out_);
}

bool Saver::is_writing() const {
  return writing_.valid() &&
         writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace moe::train
