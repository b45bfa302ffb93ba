#include "core/train/observe/text_samples.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"

namespace moe::train {

namespace {

constexpr size_t kMostPrompts = 16, kMostKept = 12;  // files of ours have three prompts

OrderedJson pair_of(const TextSample& sample) {
  return OrderedJson::array({sample.step, sample.text});
}

TextSample sample_of(const Json& pair, const std::string& prompt, const std::string& where) {
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
      !pair[1].is_string()) {
    throw UserError("{}: a sample must be [step, text]", where);
  }
  return {pair[0], prompt, pair[1]};
}

}  // namespace

std::string line_of(const TextSample& sample) {
  const OrderedJson json = {
      {"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::optional<TextSample> read_sample(const Json& line) {
  const auto is_text = [&](const char* key) { return line.contains(key) && line[key].is_string(); };
  if (!line.is_object() || !line.value("step", Json()).is_number_integer() || !is_text("prompt") ||
      !is_text("text")) {
    return std::nullopt;
  }
  return TextSample{line["step"], line["prompt"], line["text"]};
}

void for_each_sample(const std::filesystem::path& file,
                     const std::function<void(const TextSample&)>& on_sample) {
  if (!std::filesystem::exists(file)) {
    return;
  }
  FileReader in(file);
  for (std::string line; in.read_whole_line(line);) {
    const auto sample = read_sample(try_parse_json(line).value_or(Json()));
    if (!sample) {
      break;
    }
    on_sample(*sample);
  }
}

void SampleHistory::add(const TextSample& sample) {
  auto entry = std::find_if(prompts_.begin(), prompts_.end(),
                            [&](const Prompt& prompt) { return prompt.prompt == sample.prompt; });
  if (entry == prompts_.end()) {
    if (prompts_.size() == kMostPrompts) {
      return;
    }
    entry = prompts_.insert(entry, {sample.prompt, 0, 1, {}, {}});
  }
  if (entry->count % entry->stride == 0) {
    entry->kept.push_back(sample);
  }
  entry->last = sample;
  ++entry->count;
  if (entry->kept.size() > kMostKept) {
    entry->stride *= 2;
    std::vector<TextSample> fewer;
    for (size_t i = 0; i < entry->kept.size(); i += 2) {
      fewer.push_back(std::move(entry->kept[i]));
    }
    entry->kept = std::move(fewer);
  }
}

OrderedJson SampleHistory::to_json() const {
  OrderedJson json = OrderedJson::array();
  for (const auto& prompt : prompts_) {
    OrderedJson samples = OrderedJson::array();
    for (const auto& sample : prompt.kept) {
      samples.push_back(pair_of(sample));
    }
    json.push_back({{"prompt", prompt.prompt},
                    {"count", prompt.count},
                    {"stride", prompt.stride},
                    {"kept", samples},
                    {"last", pair_of(prompt.last)}});
  }
  return json;
}

SampleHistory SampleHistory::from_json(const Json& json, const std::string& where) {
  SampleHistory history;
  if (!json.is_array() || json.size() > kMostPrompts) {
    throw UserError("{}: samples must be an array of at most {} prompts", where, kMostPrompts);
  }
  for (const auto& entry : json) {
    Prompt prompt{get_string(entry, "prompt", where),
                  get_int(entry, "count", where),
                  get_int(entry, "stride", where),
                  {},
                  sample_of(entry.value("last", Json()), entry["prompt"], where)};
    const Json samples = entry.value("kept", Json());
    if (prompt.stride < 1 || !samples.is_array() || samples.empty() || samples.size() > kMostKept) {
      throw UserError("{}: samples of a prompt must be 1 to {}, their stride positive", where,
                      kMostKept);
    }
    for (const auto& pair : samples) {
      prompt.kept.push_back(sample_of(pair, prompt.prompt, where));
    }
    history.prompts_.push_back(std::move(prompt));
  }
  return history;
}

std::vector<const TextSample*> a_few(const SampleHistory::Prompt& prompt) {
  constexpr size_t kFew = 6;
  std::vector<const TextSample*> all, few;
  for (const auto& sample : prompt.kept) {
    all.push_back(&sample);
  }
  if ((prompt.count - 1) % prompt.stride != 0) {
    all.push_back(&prompt.last);
  }
  for (size_t i = 0; i < std::min(kFew, all.size()); ++i) {
    few.push_back(all[all.size() <= kFew ? i : i * (all.size() - 1) / (kFew - 1)]);
  }
  return few;
}

}  // namespace moe::train
