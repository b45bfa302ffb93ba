#include "core/upcycle/upcycle_request.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/io/checkpoint.h"
#include "core/model/config/weights.h"

namespace moe::model {

Options request_options(UpcycleRequest& request) {
  Options options = {
      {"upcycle", &request.experts, group::kModel,
       "upcycle a dense MODEL in memory to N experts, as moe upcycle does on disk",
       whole_between(1, kMaxExperts), "MODEL as it is"},
      {"layers", &request.layers, group::kModel,
       "with --upcycle: even, odd, all, or a list like 0,3,5 or 0-3"},
      {"upcycle-seed", &request.seed, group::kModel,
       "with --upcycle: random seed of the router weights (moe upcycle --seed)", seed_range()},
      {"granularity", &request.granularity, group::kModel,
       "with --upcycle: split each expert into G (moe upcycle --granularity)", whole_from(1)},
      {"shared-expert", &request.shared_expert, group::kModel,
       "with --upcycle: add a shared expert (moe upcycle --shared-expert)"}};
  options.front().spelling = "--upcycled,--upcycle";
  for (Option& option : options) {
    option.is_written = [&request] { return request.experts.has_value(); };
  }
  return options;
}

void check_request(const UpcycleRequest& request) {
  if (request.experts) {
    return;
  }
  USER_ERROR_IF(request.shared_expert,
                "--shared-expert: needs a dense folder that is upcycled in memory; add --upcycle "
                "N, or remove it");
  USER_ERROR_IF(request.granularity != 1,
                "--granularity {}: needs a dense folder that is upcycled in memory; add --upcycle "
                "N, or remove it",
                request.granularity);
}

OrderedJson to_json(const UpcycleRequest& request) {
  if (!request.experts) {
    return nullptr;
  }
  return {{"experts", *request.experts},
          {"layers", request.layers},
          {"seed", request.seed},
          {"granularity", request.granularity},
          {"shared_expert", request.shared_expert}};
}

route::RouterSettings upcycled_router(const route::RouterRequest& router) {
  return route::requested_router(router, route::parse_router(kUpcycledRouter));
}

route::RouterRequest remaining_router_request(const UpcycleRequest& request,
                                              const route::RouterRequest& router) {
  return request.experts ? route::RouterRequest{} : router;
}

VocabularyExtension extend_vocabulary(const std::filesystem::path& folder,
                                      const std::vector<std::string>& tokens) {
  if (tokens.empty()) {
    return {};
  }
  const ModelConfig config = read_config(folder);
  VocabularyExtension result{io::with_special_tokens(folder, tokens), config.vocab_size,
                             config.vocab_size};
  const auto before = io::Tokenizer::load(folder, 0);
  const auto after = io::Tokenizer::load(folder, 0, result.files);
  const int64_t size = before.vocab_size();
  std::vector<std::string> words;
  for (const auto& token : tokens) {
    const int64_t id = after.special_id(token);
    USER_ERROR_IF(id < size && before.piece(id) != token,
                  "--add-tokens: the ids of the tokenizer in {} have gaps, so none can be added",
                  folder.string());
    result.begin = id < size ? result.begin : std::min(result.begin, size);
    result.end = std::max(result.end, id + 1);
    words.push_back(fmt::format(
        "{} {}{}", token, id, before.special_id(token) < 0 ? "" : " (in the vocabulary already)"));
  }
  result.vocab_size = std::max(result.vocab_size, result.end);
  result.words = fmt::format(
      "added tokens: {}; vocabulary {} -> {}, new rows of embedding and head "
      "start as the mean of the others",
      fmt::join(words, ", "), config.vocab_size, result.vocab_size);
  return result;
}

}  // namespace moe::model
