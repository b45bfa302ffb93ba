#include "core/eval/scoring/response_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>

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

void put_samples(io::ContentHash& hash, std::span<const std::byte> bytes) {
  const size_t length = std::min(bytes.size(), kSampleBytes);
  for (const size_t begin : {size_t{0}, (bytes.size() - length) / 2, bytes.size() - length}) {
    hash.update(bytes.subspan(begin, length));
  }
}

void put_file(io::ContentHash& hash, const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0) {
    put(hash, status.st_size);
    put(hash, status.st_mtim.tv_sec);
    put(hash, status.st_mtim.tv_nsec);
  }
}

}  // namespace

io::Digest model_digest(const io::Checkpoint& checkpoint) {
  io::ContentHash hash;
  hash.update_text(checkpoint.config().dump());
  std::vector<std::filesystem::path> files;
  for (const auto& tensor : checkpoint.tensors()) {
    hash.update_text(tensor.name);
    put(hash, static_cast<int64_t>(tensor.dtype));
    put(hash, tensor.shape);
    put_samples(hash, checkpoint.bytes(tensor.name));
    const auto& file = checkpoint.file_of(tensor.name).path();
    if (std::find(files.begin(), files.end(), file) == files.end()) {
      files.push_back(file);
      put_file(hash, file);
    }
  }
  return hash.digest();
}

ResponseCache::ResponseCache(const std::filesystem::path& file, const io::Digest& model,
                             std::string computed)
    : log_(file, kTitle), model_(model), computed_(std::move(computed)) {
  const std::string opening = R"({"key":")";
  for (const auto& line : log_.lines()) {
    if (line.starts_with(opening) && line.size() > opening.size() + kKeyDigits) {
      lines_[line.substr(opening.size(), kKeyDigits)] = line;
    }
  }
}

void ResponseCache::use(const model::RoutingOptions& routing) {
  routing_ = fmt::format("{} ranks {}", route::to_full_string(routing.router), routing.ep_ranks);
  if (routing.gate_scale) {
    routing_ += fmt::format(" gate scale {}", *routing.gate_scale);
  }
}

std::string ResponseCache::key_of(const PlannedForward& forward) const {
  io::ContentHash hash;
  hash.update_text(model_.hex());
  hash.update_text(fmt::format("{} {} scores {}", kVersion, computed_, routing_));
  put(hash, forward.inputs.lengths);
  put(hash, forward.inputs.continues);
  for (const size_t index : forward.requests) {
    put(hash, forward.all[index].tokens);
    put(hash, forward.all[index].scored);
  }
  return hash.digest().hex();
}

std::string ResponseCache::key_of(const std::vector<int64_t>& prompt,
                                  const Generation& generation) const {
  io::ContentHash hash;
  hash.update_text(model_.hex());
  hash.update_text(fmt::format("{} {} answer {}", kVersion, computed_, routing_));
  put(hash, prompt);
  put(hash, generation.max_tokens);
  for (const auto& word : generation.until) {
    hash.update_text(word);
  }
  return hash.digest().hex();
}

std::optional<ForwardScores> ResponseCache::find(const PlannedForward& forward) {
  const auto found = lines_.find(key_of(forward));
  if (found == lines_.end()) {
    return std::nullopt;
  }
  try {
    ForwardScores scores = forward_scores_from(parse_json(found->second, "a cached response"));
    if (scores.scores.size() == forward.requests.size()) {
      hits_ += static_cast<int64_t>(forward.requests.size());
      return scores;
    }
  } catch (const Json::exception&) {  // not what we write: as if it were not there
  } catch (const UserError&) {        // no JSON
  }
  return std::nullopt;
}

void ResponseCache::store(const PlannedForward& forward, const ForwardScores& answers) {
  store_line(key_of(forward), to_json(answers));
}

std::optional<std::string> ResponseCache::find_text(const std::vector<int64_t>& prompt,
                                                    const Generation& generation) {
  const auto found = lines_.find(key_of(prompt, generation));
  if (found == lines_.end()) {
    return std::nullopt;
  }
  try {
    auto answer = parse_json(found->second, "a cached response").at("answer").get<std::string>();
    ++hits_;
    return answer;
  } catch (const Json::exception&) {
  } catch (const UserError&) {
  }
  return std::nullopt;
}

void ResponseCache::store_text(const std::vector<int64_t>& prompt, const Generation& generation,
                               const std::string& answer) {
  if (find_invalid_utf8(answer) == kValidUtf8) {  // else JSON cannot hold it
    store_line(key_of(prompt, generation), {{"answer", answer}});
  }
}

// On disk only: a run needs no forward twice, unless two of its tasks are the same, and those find
// it the next time.
void ResponseCache::store_line(const std::string& key, OrderedJson content) {
  OrderedJson line = {{"key", key}};
  line.update(content);
  log_.append(line.dump());
}

}  // namespace moe::eval
