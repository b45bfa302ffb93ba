#include "core/train/loop/run_start.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/base/version.h"
#include "core/io/file.h"
#include "core/io/staging_area.h"
#include "core/route/router.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/observe/history.h"
#include "core/train/step/trainable.h"

namespace moe::train {

namespace {

uint64_t model_bytes(const io::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    bytes += static_cast<uint64_t>(tensor.bytes());
  }
  return bytes;
}

// Throws UserError if the disk has no space for final/ and the checkpoints of the run: --keep and
// the one that is being written, less `existing` ones.
void check_run_space(const RunPlan& plan, const io::Checkpoint& checkpoint, size_t existing) {
  const bool saves = plan.settings.save_every || plan.settings.save_minutes;
  const auto wanted = saves ? static_cast<size_t>(plan.settings.keep) + 1 : 0;
  const size_t missing = saves ? std::max<size_t>(1, wanted - std::min(wanted, existing)) : 0;
  io::check_space(plan.settings.run,
                  model_bytes(checkpoint) + missing * checkpoint_bytes(checkpoint, plan));
}

// Returns "Intel(R) Xeon(R) Processor @ 2.10GHz, 8 cores, 31.3 GiB of memory, Linux 6.1.0 x86_64".
std::string describe_machine() {
  const std::string processor = system_field("/proc/cpuinfo", "model name");
  utsname system{};
  ::uname(&system);
  const auto pages = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  return fmt::format("{}, {} cores, {} of memory, {} {} {}",
                     processor.empty() ? "processor unknown" : processor,
                     ::sysconf(_SC_NPROCESSORS_ONLN), io::size_text(pages * page_bytes),
                     system.sysname, system.release, system.machine);
}

OrderedJson describe_start(const RunPlan& plan) {
  OrderedJson line = {{"step", plan.first_step},
                      {"time", time_text()},
                      {"moe", kVersion},
                      {"libtorch", TORCH_VERSION},
                      {"machine", describe_machine()},
                      {"threads", at::get_num_threads()},
                      {"parameters", plan.parameters}};
  if (plan.is_moe) {
    line["router"] = to_string(plan.routing.router);
    line["loss"] = plan.losses;
  }
  if (plan.layout.processes > 1) {
    line["layout"] = distributed::describe(plan.layout);
  }
  line["data"] = plan.data;
  line["notes"] = plan.notes;
  return line;
}

// Appends a line to starts.jsonl, after truncating an unfinished one. Throws UserError if it cannot
// be written.
void append_to_run_history(const std::filesystem::path& file, const OrderedJson& start) {
  const Descriptor descriptor = open_lines(file);
  const std::string line = start.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  io::write_all(descriptor, std::as_bytes(std::span(line)), file);
  io::sync(descriptor, file);
}

// Returns the newest intact checkpoint of an existing run, else the model. Sets plan.first_step and
// adds notes on damaged checkpoints and the first step. Throws UserError if all checkpoints are
// damaged.
ResumePlan find_start(const RunFolder& folder, RunState state, RunPlan& plan) {
  if (state != RunState::kResumable) {
    return {plan.settings.model, false, false, nullptr};
  }
  std::vector<std::string> damaged;
  const auto checkpoint = folder.newest_whole(damaged);
  USER_ERROR_IF(!checkpoint && !damaged.empty(),
                "{}: all checkpoints are damaged ({}); restore one from a backup, or use --force "
                "to start over at step 0",
                folder.path().string(), fmt::join(damaged, "; "));
  plan.notes.insert(plan.notes.end(), damaged.begin(), damaged.end());
  if (!checkpoint) {
    plan.notes.push_back("resuming from step 0: no checkpoint was saved");
    return {plan.settings.model, false, false, nullptr};
  }
  plan.first_step = read_train_state(*checkpoint).step;
  if (const auto step = parse_step_name(checkpoint->filename().string()); step != plan.first_step) {
    throw UserError("{}: 'step' is {}, the folder is that of another step; remove the folder",
                    train_state_file(*checkpoint).string(), plan.first_step);
  }
  plan.notes.push_back(
      fmt::format("resuming from step {} ({})", plan.first_step, checkpoint->string()));
  return {*checkpoint, /*resumed=*/true, false, nullptr};
}

// Returns RUN and the parent folders that do not exist yet. They are synced, because a checkpoint
// survives a power loss only if its path does.
std::vector<std::filesystem::path> folders_to_sync(const std::filesystem::path& run) {
  const std::filesystem::path whole = std::filesystem::absolute(run).lexically_normal();
  std::vector<std::filesystem::path> folders = {whole};
  while (!std::filesystem::exists(folders.back()) && folders.back().has_relative_path()) {
    folders.push_back(folders.back().parent_path());
  }
  return folders;
}

ResumePlan begin(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint) {
  const std::string toml = to_toml(plan.settings);
  Inputs inputs = find_inputs(plan.settings);
  const RunState state = folder.state(toml, inputs, plan.notes);
  if (state == RunState::kDone) {
    plan.first_step = *plan.settings.steps;
    plan.notes.push_back(fmt::format("this run is already complete ({}); use --force to start over",
                                     folder.final_model().string()));
    folder.remove_leftovers();
    return {{}, false, /*is_done=*/true, nullptr};
  }
  check_run_space(plan, checkpoint,
                  state == RunState::kResumable ? folder.saved_steps().size() : 0);
  ResumePlan start = find_start(folder, state, plan);
  const std::vector<std::filesystem::path> new_in = folders_to_sync(folder.path());
  folder.begin(toml, state);
  folder.claim(folder.inputs());
  io::write_whole(folder.inputs(), to_json(inputs));
  start.log = std::make_unique<MetricsLog>(
      folder, plan.first_step, start.resumed ? start.folder : std::filesystem::path(), plan.notes);
  append_to_run_history(folder.run_history(), describe_start(plan));
  for (const auto& file : new_in) {
    io::sync_folder(file);
  }
  return start;
}

}  // namespace

uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan) {
  const int64_t state = 4 + 2 * io::dtype_bytes(plan.settings.adamw.moments);  // per parameter
  return model_bytes(checkpoint) + static_cast<uint64_t>(state * plan.parameters);
}

ResumePlan begin_run(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint,
                     distributed::Comm& ranks) {
  const TrainSettings& settings = plan.settings;
  const bool is_done = !settings.force && std::filesystem::exists(folder.final_model());
  if (const auto shortage = distributed::check_memory(
          &ranks, is_done ? MemoryNeed{} : memory_need(plan), settings.force_memory)) {
    plan.notes.push_back(*shortage);
  }
  ResumePlan start;
  distributed::on_all_ranks(&ranks, [&] {
    if (ranks.rank() == 0) {
      start = begin(folder, plan, checkpoint);
    }
  });
  if (ranks.size() > 1) {
    const OrderedJson decided = {{"folder", start.folder.string()},
                                 {"resumed", start.resumed},
                                 {"is_done", start.is_done},
                                 {"first_step", plan.first_step}};
    const Json received =
        parse_json(distributed::gather_texts(ranks, decided.dump()).front(), "rank 0");
    start = {received["folder"].get<std::string>(), received["resumed"], received["is_done"],
             std::move(start.log)};
    plan.first_step = received["first_step"];
  }
  return start;
}

}  // namespace moe::train
