#pragma once
// Mixtures that tests upcycle from small dense folders.

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "core/model/config/folder_tensors.h"  // ATen before Catch2: both define CHECK
#include "core/upcycle/upcycle.h"
#include "tests/support/catch.h"

namespace moe::test {

// Settings of a mixture in every other layer.
inline model::UpcycleSettings upcycle_settings(const std::filesystem::path& out,
                                               const std::string& router = "top2:cf=inf",
                                               int64_t experts = 4) {
  model::UpcycleSettings settings;
  settings.out = out;
  settings.experts = experts;
  settings.router = route::parse_router(router);
  return settings;
}

// Upcycles a dense folder to settings.out and opens both. The tensors fit the config.
struct Upcycled {
  Upcycled(const std::filesystem::path& dense_folder, const model::UpcycleSettings& settings,
           const model::UpcycleHooks& hooks = {})
      : dense(dense_folder),
        report(model::upcycle(dense, model::plan_upcycle(dense, settings), settings, hooks)),
        child(settings.out),
        config(model::parse_config(child.config(), "child")) {
    model::check_tensors(child, config);
  }
  io::Checkpoint dense;
  OrderedJson report;  // upcycle.json
  io::Checkpoint child;
  model::ModelConfig config;
};

// Checks that `values` are N(0, deviation): five standard errors of mean and variance, plus the
// relative `rounding` of the type that they are stored in.
inline void check_normal(const std::vector<float>& values, double deviation, double rounding = 0) {
  double sum = 0, square = 0;
  for (const float value : values) {
    sum += value;
    square += double{value} * value;
  }
  const auto count = static_cast<double>(values.size());
  CHECK(std::abs(sum / count) < 5 * deviation / std::sqrt(count));
  CHECK(std::abs(square / count / (deviation * deviation) - 1) <
        5 * std::sqrt(2 / count) + rounding);
}

template <typename Number>
double cosine(const std::vector<Number>& a, const std::vector<Number>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace moe::test
