// Empty, non-finite and overlong values, and faults of recipes, are refused in one short message.

#include "tests/cli/commands.h"

using namespace moe::test;

TEST_CASE("an empty value is refused by the name of its flag", "[cli]") {
  const TempDir dir;
  const std::string out = (dir / "out").string(), recipe = (dir / "r.toml").string();
  write_file(recipe, "[upcycle]\nrouter = \"\"\n");
  check_refused_each(
      {}, {{{"upcycle", tiny("model"), "-o", out, "--router", ""}, "--router: the value is empty"},
           {{"upcycle", tiny("model"), "-o", out, "--config", recipe}, "--router"},
           {{"train", tiny("model"), "--data", "x", "-o", ""}, "--out: the value is empty"},
           {{"bench", "load", ""}, "MODEL: the value is empty"},
           {{"upcycle", tiny("model"), "-o", out, "--router-std", "nan"}, "--router-std"}});
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("a name that is too long is abbreviated in the message", "[cli]") {
  const std::string name(5000, 'n');
  const std::string shown = std::string(80, 'n') + ".." + std::string(80, 'n');
  for (const Words& words : {Words{"upcycle", tiny("model"), "-o", name},
                             {"train", tiny("model"), "--data", name, "-o", "x"},
                             {"generate", name, "--prompt", "a"},
                             {"upcycle", tiny("model"), "-o", "x", "--layers", name},
                             {name}}) {
    const auto run = run_moe(words);
    check_refused(run, shown);
    CHECK(run.err.size() < 1000);
  }
}

TEST_CASE("a fault of a recipe is named with the recipe", "[cli]") {
  const TempDir dir;
  const std::string recipe = (dir / "r.toml").string();
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {"[train]\nlr = = 1\n", " line 2: "},
           {"lr = 1\n", ": 'lr' is outside a table"},
           {"[trian]\n", ": [trian] is not a command"},
           {"[train]\nlrr = 1\n", ": 'lrr' under [train] is not a flag of that command"}}) {
    write_file(recipe, text);
    check_refused({"train", "m", "--config", recipe}, "moe: --config " + recipe + fact);
  }
  check_refused({"--config", recipe, "train", "m"}, "moe: --config " + recipe + ": 'lrr'");
}
