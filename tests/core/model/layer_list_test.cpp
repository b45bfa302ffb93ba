#include "core/model/config/layer_list.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using Layers = std::vector<int64_t>;

TEST_CASE("layer patterns and lists name the layers they say", "[model][layers]") {
  CHECK(parse_layers("even", 5) == Layers{0, 2, 4});
  CHECK(parse_layers("odd", 5) == Layers{1, 3});
  CHECK(parse_layers("all", 3) == Layers{0, 1, 2});
  CHECK(parse_layers("even", 1) == Layers{0});
  CHECK(parse_layers("4", 5) == Layers{4});
  CHECK(parse_layers("3,0,1", 5) == Layers{0, 1, 3});
  CHECK(parse_layers("0-2,4", 5) == Layers{0, 1, 2, 4});
  CHECK(parse_layers("3-3", 5) == Layers{3});
}

TEST_CASE("layers that a model has not, or that make no sense, are refused", "[model][layers]") {
  const auto message = [](const char* text, int64_t layers) {
    return test::user_error_of([&] { parse_layers(text, layers); });
  };
  CHECK(message("5", 5) == "--layers 5: layer 5 does not exist; the model has layers 0 to 4");
  CHECK(message("0-9", 5) == "--layers 0-9: layer 9 does not exist; the model has layers 0 to 4");
  CHECK(message("99999999999999999999", 5) ==
        "--layers 99999999999999999999: layer 99999999999999999999 does not exist; the model has "
        "layers 0 to 4");
  CHECK(message("evn", 5) ==
        "--layers evn: 'evn' is not understood; give even, odd, all or a list like 0,3,5 or 0-3");
  CHECK(message("-1", 5) ==
        "--layers -1: '-1' is not understood; give even, odd, all or a list like 0,3,5 or 0-3");
  CHECK(message("1,", 5) ==
        "--layers 1,: '' is not understood; give even, odd, all or a list like 0,3,5 or 0-3");
  CHECK(message("", 5) ==
        "--layers : '' is not understood; give even, odd, all or a list like 0,3,5 or 0-3");
  CHECK(message("3-1", 5) == "--layers 3-1: the range 3-1 runs backwards");
  CHECK(message("0-2,1", 5) == "--layers 0-2,1: layer 1 is named twice");
  CHECK(message("odd", 1) ==
        "--layers odd: a model of 1 layer has none of these; give even, all or 0");
}

}  // namespace
}  // namespace moe::model
