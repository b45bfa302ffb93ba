#include "core/base/option.h"

#include "core/base/error.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::test;

namespace {

enum class Colour { kRed, kBlue };

struct Settings {
  std::optional<int64_t> steps;
  double rate = 0.5;
  std::vector<std::string> files;
  Colour colour = Colour::kBlue;
  std::string name = "say \"yes\"";
  int threads = 0;
};

Options options_of(Settings& settings) {
  return {
      {.name = "steps",
       .member = &settings.steps,
       .help = "how many",
       .range = whole_from(1),
       .fallback = "one"},
      {.name = "rate",
       .member = &settings.rate,
       .help = "how fast",
       .range = number_from(0),
       .source = "PyTorch"},
      {.name = "files", .member = &settings.files},
      {.name = "colour",
       .member = choice<Colour, Colour>("colour", settings.colour,
                                        {{"red", Colour::kRed}, {"blue", Colour::kBlue}}),
       .help = "red or blue"},
      {.name = "name", .member = &settings.name, .changes_numbers = false},
      {.name = "threads",
       .member = &settings.threads,
       .changes_numbers = false,
       .is_written = [&settings] { return settings.threads > 0; }},
  };
}

const Choice& colour_of(const Options& options) { return std::get<Choice>(options[3].member); }

}  // namespace

TEST_CASE("Options that have a value are written as TOML", "[base]") {
  Settings settings;
  CHECK(toml_lines(options_of(settings)) ==
        "rate = 0.5\ncolour = \"blue\"\nname = \"say \\\"yes\\\"\"\n");
  settings.steps = 3;
  settings.files = {"a", "b\\c"};
  settings.threads = 2;
  CHECK(toml_lines(options_of(settings)) ==
        "steps = 3\nrate = 0.5\nfiles = [\"a\", \"b\\\\c\"]\ncolour = \"blue\"\n"
        "name = \"say \\\"yes\\\"\"\nthreads = 2\n");
}

TEST_CASE("A choice accepts its words and refuses others", "[base]") {
  Settings settings;
  const Options options = options_of(settings);
  colour_of(options).set("red");
  CHECK(settings.colour == Colour::kRed);
  CHECK(colour_of(options).get() == "red");
  CHECK_THAT(user_error_of([&] { colour_of(options).set("green"); }),
             contains_text("--colour 'green' is unknown; known: red, blue"));
}

TEST_CASE("A number outside its range is refused with its flag", "[base]") {
  Settings settings;
  check_ranges(options_of(settings));
  settings.steps = 0;
  CHECK_THAT(user_error_of([&] { check_ranges(options_of(settings)); }),
             contains_text("--steps 0: must be a whole number of at least 1"));
  settings.steps = int64_t{1} << 41;
  CHECK_THROWS(check_ranges(options_of(settings)));
  settings.steps = 1;
  settings.rate = std::nan("");
  CHECK_THROWS(check_ranges(options_of(settings)));
  check_range("--rate", "2", number_from(0));
  check_range("--rate", "two", number_from(0));  // refused by the conversion
  for (const auto& [value, range, fact] :
       {std::tuple("0", positive_number(), "--rate 0: must be a positive number"),
        std::tuple("9", number_between(1, 8), "--rate 9: must be a number of 1 to 8")}) {
    CHECK_THAT(
        user_error_of([text = value, limits = range] { check_range("--rate", text, limits); }),
        contains_text(fact));
  }
}

TEST_CASE("An integer is written in decimal digits within its type and range", "[base]") {
  struct Numbers {
    int64_t large = 0;
    uint64_t seed = 0;
    int small = 0;
    std::optional<int64_t> steps;
    double rate = 0;
  } numbers;
  const Option large{.name = "large", .member = &numbers.large},
      seed{.name = "seed", .member = &numbers.seed},
      small{.name = "small", .member = &numbers.small},
      steps{.name = "steps", .member = &numbers.steps, .range = whole_from(1)},
      rate{.name = "rate", .member = &numbers.rate};
  CHECK(integer_text(seed, "18446744073709551615") == "18446744073709551615");
  CHECK(integer_text(large, "-9223372036854775808") == "-9223372036854775808");
  CHECK(integer_text(small, "010") == "10");
  CHECK(integer_text(rate, "0x1p3") == "0x1p3");  // not an integer option
  for (const auto& [option, text] : {std::pair(&seed, "-1"),
                                     {&seed, "18446744073709551616"},
                                     {&large, "9223372036854775808"},
                                     {&small, "2147483648"},
                                     {&steps, "99999999999999999999"},
                                     {&steps, ""},
                                     {&steps, "1e3"},
                                     {&steps, "0x10"},
                                     {&steps, " 3"}}) {
    CAPTURE(text);
    CHECK_THROWS_AS(integer_text(*option, text), UserError);
  }
  CHECK_THAT(user_error_of([&] { integer_text(seed, "-1"); }),
             contains_text("--seed -1: must be a whole number of 0 to 18446744073709551615"));
  CHECK_THAT(user_error_of([&] { integer_text(steps, "1.5"); }),
             contains_text("--steps 1.5: must be a whole number of 1 to 1099511627776"));
}

TEST_CASE("Help states defaults and sources; keys that change no results are listed", "[base]") {
  Settings settings;
  const Options options = options_of(settings);
  CHECK(help_line(options[0]) == "how many (default: one)");
  CHECK(help_line(options[1]) == "how fast (default: 0.5, as PyTorch)");
  CHECK(help_line(options[3]) == "red or blue (default: blue)");
  CHECK(flag_name(options[0]) == "--steps");
  CHECK(changeable_keys(options) == std::set<std::string>{"name", "threads"});
}

TEST_CASE("A member is set from its own text form only", "[base]") {
  Settings settings;
  const Options options = options_of(settings);
  const auto set = [&](size_t index, const char* text) {
    return set_value(options[index].member, text);
  };
  CHECK((set(0, "7") && settings.steps == 7 && value_text(options[0].member) == "7"));
  for (const char* text : {"7.5", "x", "99999999999999999999"}) {
    CHECK_FALSE(set(0, text));
  }
  CHECK(settings.steps == 7);
  CHECK((set(0, "") && !settings.steps && value_text(options[0].member).empty()));
  CHECK((set(1, "1e-3") && settings.rate == 0.001 && value_text(options[1].member) == "0.001"));
  for (const char* text : {"", "nan", "inf", "1e999", "1,5"}) {
    CHECK_FALSE(set(1, text));
  }
  CHECK(settings.rate == 0.001);
  CHECK((set(3, "red") && settings.colour == Colour::kRed && !set(3, "green")));
  CHECK(value_text(options[3].member) == "red");
  CHECK_FALSE(set(2, "a"));  // a list
}
