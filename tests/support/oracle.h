#pragma once
// The golden routing cases of ../shared/oracle/cases.

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/route/route.h"
#include "tests/support/data.h"

namespace moe::test {

// Returns oracle/cases in the parent of the shared data; empty if absent.
inline fs::path oracle_cases() {
  const auto folder = shared_data() / ".." / "oracle" / "cases";
  return !shared_data().empty() && fs::is_directory(folder) ? folder : fs::path();
}

// Returns all cases of one kind, sorted by name.
inline std::vector<nlohmann::json> oracle_cases_of(const std::string& kind) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(oracle_cases())) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<nlohmann::json> cases;
  for (const auto& file : files) {
    std::ifstream in(file);
    auto one = nlohmann::json::parse(in);
    if (one.at("kind") == kind) {
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

// Converts a rectangular nested list.
inline at::Tensor tensor_of(const nlohmann::json& rows, at::ScalarType type) {
  std::vector<double> numbers;
  for (const auto& row : rows) {
    for (const auto& number : row) {
      numbers.push_back(number.get<double>());
    }
  }
  const auto height = static_cast<int64_t>(rows.size());
  const int64_t width = height == 0 ? 0 : static_cast<int64_t>(rows.at(0).size());
  return at::tensor(numbers, at::kDouble).view({height, width}).to(type);
}

inline route::RoutingGroup group_of(const nlohmann::json& input) {
  route::RoutingGroup group;
  group.ranks = input.at("num_ranks").get<int64_t>();
  group.source_rank = input.at("home").get<std::vector<int64_t>>();
  if (input.contains("valid")) {
    for (size_t token = 0; token < group.source_rank.size(); ++token) {
      const auto& valid = input.at("valid").at(token);
      if (!(valid.is_boolean() ? valid.get<bool>() : valid.get<int>() != 0)) {
        group.source_rank[token] = -1;
      }
    }
  }
  return group;
}

inline const route::RouterFamily& family_named(const std::string& name) {
  const auto& families = route::router_families();
  return *std::find_if(families.begin(), families.end(),
                       [&](const auto& family) { return family.name == name; });
}

// Returns the settings of a case; layer cases have them in input.router.
inline route::RouterSettings settings_of(const nlohmann::json& input, const std::string& family) {
  route::RouterSettings settings = route::default_settings(family_named(family));
  if (family == "topp") {
    settings.p = input.at("p").get<double>();
    if (input.contains("max_experts") && !input.at("max_experts").is_null()) {
      settings.max_experts = input.at("max_experts").get<int64_t>();
    }
    return settings;
  }
  settings.k = input.at("k").get<int64_t>();
  if (family == "relu") {
    settings.l1 = input.value("l1", "refined") == "refined" ? route::L1Weights::kRefined
                                                            : route::L1Weights::kPlain;
    return settings;
  }
  settings.capacity_factor.reset();
  if (!input.at("capacity_factor").is_null()) {
    settings.capacity_factor = input.at("capacity_factor").get<double>();
  }
  settings.ir = input.value("ir", false);
  settings.fr = input.value("fr", false);
  settings.gate_norm = input.value("gate_norm", "selected") == "none" ? route::GateNorm::kNone
                                                                      : route::GateNorm::kSelected;
  settings.slot_order = input.value("slot_order", "choice") == "score" ? route::SlotOrder::kScore
                                                                       : route::SlotOrder::kChoice;
  return settings;
}

}  // namespace moe::test
