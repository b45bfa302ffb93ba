#include "core/eval/scoring/response_cache.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"

namespace moe::eval {
namespace {

const std::string kTitle = "moe responses 1";
constexpr size_t kSampleBytes = 4096;
constexpr size_t kKeyDigits = 32;

template <typename T>
void put(io::ContentHash& hash, const std::vector<T>& values) {
  const uint64_t count = values.size();
  hash.update(std::as_bytes(std::span(&count, 1)));
  hash.update(std::as_bytes(std::span(values)));
}

void put(io::ContentHash& hash, int64_t value) { hash.update(std::as_bytes(std::span(&value, 1))); }

}  // namespace

io::Digest model_digest(const io::Checkpoint& checkpoint) {
  io::ContentHash hash;
  hash.update_text(checkpoint.config().dump());
  std::vector<std::filesystem::path> files;
  for (const auto& tensor : checkpoint.tensors()) {
    hash.update_text(tensor.name);
    put(hash, static_cast<int64_t>(tensor.dtype));
    put(hash, tensor.shape);
    const std::span<const std::byte> bytes = checkpoint.bytes(tensor.name);
    const size_t length = std::min(bytes.size(), kSampleBytes);
    for (const size_t begin : {size_t{0}, (bytes.size() - length) / 2, bytes.size() - length}) {
      hash.update(bytes.subspan(begin, length));
    }
    const auto& file = checkpoint.tensor_file(tensor.name)->path();
    if (std::ranges::find(files, file) == files.end()) {
      files.push_back(file);
      struct stat status {};
      if (::stat(file.c_str(), &status) == 0) {
        put(hash, status.st_size);
        put(hash, status.st_mtim.tv_sec);
        put(hash, status.st_mtim.tv_nsec);
      }
    }
  }
  return hash.digest();
}

ResponseCache::ResponseCache(const std::filesystem::path& file, const io::Digest& model,
                             std::string backend)
    : log_(file, kTitle), model_(model), backend_(std::move(backend)) {
  const std::string begin = R"({"key":")";
  for (const auto& line : log_.lines()) {
    if (line.starts_with(begin) && line.size() > begin.size() + kKeyDigits) {
      lines_[line.substr(begin.size(), kKeyDigits)] = line;
    }
  }
}

void ResponseCache::use(const model::RoutingOptions& routing) {
  routing_ = fmt::format("{} ranks {}", route::to_string(routing.router, /*every_option=*/true),
                         routing.ep_ranks);
  if (routing.gate_scale) {
    routing_ += fmt::format(" gate scale {}", *routing.gate_scale);
  }
}

void ResponseCache::begin_key(const char* kind, io::ContentHash& hash) const {
  hash.update_text(model_.hex());
  hash.update_text(fmt::format("{} {} {} {}", kVersion, backend_, kind, routing_));
}

std::string ResponseCache::key(const PlannedForward& forward) const {
  io::ContentHash hash;
  begin_key("scores", hash);
  put(hash, forward.inputs.lengths);
  put(hash, forward.inputs.prefix_index);
  for (const size_t index : forward.requests) {
    put(hash, forward.all[index].tokens);
    put(hash, forward.all[index].scored);
  }
  return hash.digest().hex();
}

std::string ResponseCache::key(const std::vector<int64_t>& prompt,
                               const Generation& generation) const {
  io::ContentHash hash;
  begin_key("answer", hash);
  put(hash, prompt);
  put(hash, generation.max_tokens);
  for (const auto& word : generation.until) {
    hash.update_text(word);
  }
  return hash.digest().hex();
}

std::optional<Json> ResponseCache::find_line(const std::string& key) const {
  const auto found = lines_.find(key);
  return found == lines_.end() ? std::nullopt : try_parse_json(found->second);
}

std::optional<ForwardScores> ResponseCache::find(const PlannedForward& forward) {
  if (const auto line = find_line(key(forward))) {
    try {
      ForwardScores scores = parse_forward_scores(*line);
      if (scores.scores.size() == forward.requests.size()) {
        hits_ += static_cast<int64_t>(forward.requests.size());
        return scores;
      }
    } catch (const Json::exception&) {  // an invalid line is ignored
    }
  }
  return std::nullopt;
}

void ResponseCache::store(const PlannedForward& forward, const ForwardScores& scores) {
  store_line(key(forward), to_json(scores));
}

std::optional<std::string> ResponseCache::find_answer(const std::vector<int64_t>& prompt,
                                                      const Generation& generation) {
  const auto line = find_line(key(prompt, generation));
  if (!line || !line->contains("answer") || !line->at("answer").is_string()) {
    return std::nullopt;
  }
  ++hits_;
  return line->at("answer").get<std::string>();
}

void ResponseCache::store_answer(const std::vector<int64_t>& prompt, const Generation& generation,
                                 const std::string& answer) {
  if (find_invalid_utf8(answer) == kValidUtf8) {  // JSON cannot represent other bytes
    store_line(key(prompt, generation), {{"answer", answer}});
  }
}

// Appends to the file but not to lines_, because a run rarely repeats a forward pass.
void ResponseCache::store_line(const std::string& key, OrderedJson content) {
  OrderedJson line = {{"key", key}};
  line.update(content);
  log_.append(line.dump());
}

}  // namespace moe::eval
