#include <limits>
#include <type_traits>

#include "core/route/routers/all.h"

namespace moe::route {
namespace {

template <typename... Router>
std::vector<RouterFamily> families_of(std::type_identity<std::tuple<Router...>>) {
  return {Router::family()...};
}

}  // namespace

const std::vector<RouterFamily>& router_families() {
  static const std::vector<RouterFamily> families = families_of(std::type_identity<AllRouters>());
  return families;
}

const RouterFamily& default_family() { return router_families().front(); }

RouterOption capacity_option(RouterSettings& settings) {
  return {
      .option = {.name = "cf",
                 .member = &settings.capacity_factor,
                 .help = "capacity factor: slots an expert has for a rank of T_r tokens, in units "
                         "of T_r / E; inf: as many as it has tokens",
                 .range = {.least = std::numeric_limits<double>::denorm_min(),
                           .most = kMaxCapacityFactor,
                           .is_checked = true,
                           .rule = "the capacity factor cf must be above 0 and at most "
                                   "1048576, is {}; cf=inf drops nothing"}},
      .key = "capacity_factor",
      .takes = "a number above 0, or inf",
      .empty_word = "inf",
      .traits = kScalesWithGranularity,
      .sentences = {{Sentence::kNoKey,
                     "'capacity_factor' is missing; give a number above 0, or null for "
                     "dropless"}}};
}

RouterOption k_option(RouterSettings& settings) {
  return {.option = {.name = "k",
                     .member = &settings.k,
                     .range = {.least = 1,
                               .most = kMaxExperts,
                               .is_checked = true,
                               .rule = "k must be a whole number from 1 to the number of experts, "
                                       "is {}"}},
          .key = "k",
          .takes = "a whole number from 1",
          .traits = kScalesWithGranularity,
          .sentences = {{Sentence::kTooMany,
                         "router '{}' asks for {} experts per token, the layers have {}: give a "
                         "smaller k or more experts"}}};
}

}  // namespace moe::route
