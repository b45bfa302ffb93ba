// Sweeps over routing settings with a model that is loaded once; their table and page.
#include "core/base/json.h"
#include "core/eval/evaluate.h"
#include "tests/support/data.h"
#include "tests/support/mixture.h"
#include "tests/support/page.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;
using Strings = std::vector<std::string>;

model::ModelConfig config_of(const std::string& router) {
  model::ModelConfig config;
  config.moe.emplace();
  config.moe->experts = 8;
  config.moe->ep_ranks = 8;
  config.moe->router = route::parse_router(router);
  return config;
}

Strings names_of(const std::vector<SweepValue>& values) {
  Strings names;
  for (const auto& value : values) {
    names.push_back(value.name + " -> " + route::to_string(value.routing.router));
  }
  return names;
}

std::vector<SweepValue> gather_values(const Strings& sweeps, const std::string& stored,
                                      const route::RouterRequest& base = {}) {
  std::vector<SweepAxis> axes;
  for (const auto& text : sweeps) {
    axes.push_back(parse_sweep(text));
  }
  return sweep_values(axes, base, config_of(stored), false);
}

TEST_CASE("a comma continues a router unless another router follows", "[eval]") {
  CHECK((parse_sweep("cf=0.25,inf").values == Strings{"0.25", "inf"}));
  CHECK(
      (parse_sweep("router=top1:cf=2,order=score,TOP2+ir,topp:0.4,max=2,relu:k=1,mult=2").values ==
       Strings{"top1:cf=2,order=score", "TOP2+ir", "topp:0.4,max=2", "relu:k=1,mult=2"}));
}

TEST_CASE("values replace the settings stored in the folder", "[eval]") {
  CHECK((names_of(gather_values({"cf=0.5,1,inf"}, "top1+ir:cf=2")) ==
         Strings{"cf=0.5 -> top1+ir:cf=0.5", "cf=1 -> top1+ir", "cf=inf -> top1+ir:cf=inf"}));
  CHECK((names_of(gather_values({"p=0.1,0.7"}, "topp:0.4,max=3")) ==
         Strings{"p=0.1 -> topp:0.1,max=3", "p=0.7 -> topp:0.7,max=3"}));
  CHECK((names_of(gather_values({"router=top1,top1+ir", "cf=1,0.5"}, "top1")) ==
         Strings{"router=top1,cf=1 -> top1", "router=top1,cf=0.5 -> top1:cf=0.5",
                 "router=top1+ir,cf=1 -> top1+ir", "router=top1+ir,cf=0.5 -> top1+ir:cf=0.5"}));
  const auto ranks = gather_values({"ep-ranks=8,4"}, "top1", {"top2+ir", "1", {}});
  CHECK(ranks.at(1).routing.ep_ranks == 4);
  CHECK(route::to_string(ranks.at(1).routing.router) == "top2+ir:cf=1");
}

TEST_CASE("invalid sweeps are refused with the setting and the value", "[eval]") {
  struct Case {
    Strings sweeps;
    const char *stored, *fact;
    route::RouterRequest base = {};
  };
  for (const auto& [sweeps, stored, fact, base] : std::vector<Case>{
           {{"cf"}, "top1", "'cf'"},
           {{"routers=top1"}, "top1", "did you mean 'router'?"},
           {{"cf="}, "top1", "cf= has no values"},
           {{"cf=1,,2"}, "top1", "cf=: a value is empty"},
           {{"cf=1,-2"}, "top1", "cf=-2: --cf '-2'"},
           {{"p=0.1,1.5"}, "topp:0.4", "p=1.5: "},
           {{"ep-ranks=8,3"}, "top1", "ep-ranks=3: --ep-ranks 3 does not divide the 8 experts"},
           {{"ep-ranks=8,2.5"}, "top1", "ep-ranks=2.5: "},
           {{"router=top1,relu:k=1"}, "top1", "router=relu:k=1: "},
           {{"router=top1,top9"}, "top1", "router=top9: "},
           {{"cf=1,1.0"}, "top1", "cf=1 and cf=1.0 are the same router, top1"},
           {{"cf=1"}, "top1", "cf cannot be combined with --cf", {"", "2", {}}},
           {{"cf=1", "cf=2"}, "top1", "cf is given twice"},
           {{"p=0.1", "cf=2"}, "topp:0.4", "p selects top-p routers"},
           {{"p=0.1"}, "top1", "--router is top2", {"top2", "", {}}}}) {
    CAPTURE(sweeps);
    const std::string message =
        user_error_of([&, s = sweeps, f = stored, b = base] { gather_values(s, f, b); });
    CHECK(message.starts_with("--sweep"));
    CHECK_THAT(message, contains_text(fact));
  }
  CHECK_THAT(user_error_of([&] { sweep_values({parse_sweep("cf=1")}, {}, {}, false); }),
             contains_text("dense"));
}

void write_mixture(const std::filesystem::path& out) {
  test::write_mixture(tiny_model_folder(), out,
                      {.router = "top1:cf=1", .experts = 4, .router_std = 0.5, .ep_ranks = 2});
}

EvalSettings settings_of(const std::filesystem::path& model) {
  EvalSettings settings;
  settings.model = model;
  settings.data = bench_folder();
  settings.tasks = {"arc_easy", "copa"};
  settings.limit = 8;
  settings.group_tokens = 100;
  return settings;
}

OrderedJson without_times(OrderedJson results) {
  results.erase("total_evaluation_time_seconds");
  results["moe"].erase("seconds");
  return results;
}

TEST_CASE("the results of each value equal those of a separate run", "[eval]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  EvalSettings settings = settings_of(folder / "moe");
  settings.out = folder / "out";
  const std::vector<SweepAxis> axes = {parse_sweep("router=top1,top1+ir"),
                                       parse_sweep("cf=0.5,inf")};
  const SweepReport report = sweep(settings, axes);
  REQUIRE(report.rows.size() == 4);
  for (const auto& row : report.rows) {
    CAPTURE(row.value.name);
    EvalSettings alone = settings;
    alone.out = folder / ("alone " + row.value.name);
    alone.router = {row.value.axis_values[0], row.value.axis_values[1], {}};
    const RunReport run = evaluate(alone);
    CHECK(row.means[0].value == run.tasks[0].metrics.at("acc").value);
    CHECK(row.average == Approx((row.means[0].value + row.means[1].value) / 2));
    CHECK(read_file(settings.out / row.value.name / "samples_copa.jsonl") ==
          read_file(alone.out / "samples_copa.jsonl"));
    const auto results = [](const std::filesystem::path& file) {
      return without_times(OrderedJson::parse(read_file(file)));
    };
    CHECK(results(settings.out / row.value.name / "results.json") ==
          results(alone.out / "results.json"));
    CHECK((row.drop_rate > 0) == (row.value.axis_values[1] == "0.5"));
    CHECK((row.ir_share > 0) == (row.value.name == "router=top1+ir,cf=0.5"));
  }
  const Json json = Json::parse(read_file(folder / "out/sweep.json"));
  CHECK(json["values"].size() == 4);
  CHECK(json["values"][1]["results"]["arc_easy"]["n"] == 8);
  CHECK(json["values"][1]["resolved_router"] == "top1:cf=inf");
  const std::string table = sweep_table(report);
  CHECK(table.find("value                  arc_easy") == 0);
  CHECK(table.find("average  drop %   IR %  rows/token   n\n") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "out/responses.cache"));
  CHECK_THAT(user_error_of([&] { sweep(settings, axes); }), contains_text("sweep.json: "));
}

TEST_CASE("a stopped sweep resumes, and results of other runs are not overwritten", "[eval]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  EvalSettings settings = settings_of(folder / "moe");
  const std::vector<SweepAxis> axes = {parse_sweep("cf=0.5,1,2")};
  const SweepReport whole = sweep(settings, axes);
  settings.out = folder / "out";
  int forwards = 0, stops = 0;
  EvalEvents events;
  events.stop_requested = [&] { return ++forwards == 9 * (stops + 1); };
  std::optional<SweepReport> report;
  while (!report && stops < 100) {
    forwards = 0;
    try {
      report = sweep(settings, axes, events);
    } catch (const Interrupted& stopped) {
      ++stops;
      CHECK_THAT(stopped.what(), contains_text("cf=") && contains_text("responses.cache"));
    }
  }
  REQUIRE(report);
  CHECK(stops > 1);
  CHECK(sweep_table(*report) == sweep_table(whole));
  EvalSettings other = settings;
  other.out = folder / "other";
  write_file(folder / "other/cf=1/results.json", "{}");
  CHECK_THAT(user_error_of([&] { sweep(other, axes); }), contains_text("cf=1/results.json: "));
}

SweepReport example_report() {
  SweepReport report{
      "<model>", {parse_sweep("router=top1,top2"), parse_sweep("cf=2,1,inf")}, {}, {}};
  report.columns = {{"mmlu", "acc", 100}, {"lambada_openai", "acc", 50}};
  double value = 0.2;
  for (const std::string router : {"top1", "top2"}) {
    for (const std::string cf : {"2", "1", "inf"}) {
      SweepRow row{{{router, cf}, "router=" + router + ",cf=" + cf, {}},
                   {{value, 0.01}, {value / 2, std::nullopt}}};
      row.average = 0.75 * value;
      row.experts_per_token = 1;
      report.rows.push_back(row);
      value += 0.1;
    }
  }
  return report;
}

TEST_CASE("the page has a panel per column, a line per router, a mark per value", "[eval]") {
  const std::string page = sweep_page(example_report());
  const Json data = drawn_data(page);
  REQUIRE(data["sections"].size() == 1);
  const Json& section = data["sections"][0];
  CHECK(section["x"] == Json{{"label", "cf"}, {"names", {"1", "2", "inf"}}});  // in order
  Strings titles;
  for (const auto& panel : section["panels"]) {
    titles.push_back(panel["title"]);
    REQUIRE(panel["series"].size() == 2);
    CHECK(panel["series"][1]["name"] == "top2");
    CHECK(panel["series"][1]["x"] == Json{0, 1, 2});
    CHECK(panel["series"][1]["is_marked"] == true);
    CHECK(panel["series"][1].contains("low") == panel["title"].get<std::string>().ends_with("acc"));
  }
  CHECK((titles == Strings{"average", "mmlu, acc", "lambada_openai, acc", "rows per token"}));
  const Json mmlu = section["panels"][1]["series"][0];  // cf 2, 1, inf were 0.2, 0.3, 0.4
  CHECK(mmlu["y"][0].get<double>() == Approx(0.3));
  CHECK(mmlu["low"][0].get<double>() == Approx(0.29));
  CHECK(mmlu["high"][1].get<double>() == Approx(0.21));
  CHECK(count_of(page, "<h1>&lt;model&gt;</h1>") == 1);
  CHECK(count_of(page, "<tr><th scope=\"row\">router=top1,cf=2</th><td>0.1500</td>") == 1);
  CHECK(page.find("https://") == std::string::npos);
  CHECK(page.find("nan") == std::string::npos);
}

TEST_CASE("a sweep over routers alone is drawn as bars", "[eval]") {
  SweepReport report{"model", {parse_sweep("router=top1,top2")}, {{"mmlu", "acc", 100}}, {}};
  for (const std::string router : {"top1", "top2"}) {
    report.rows.push_back({{{router}, "router=" + router, {}}, {{0.3, 0.01}}, 0.3});
  }
  const Json section = drawn_data(sweep_page(report))["sections"][0];
  CHECK(section["x"] == Json{{"label", "router"}, {"names", {"top1", "top2"}}});
  CHECK(section["panels"].size() == 2);  // the task, rows per token
  CHECK(section["panels"][0]["kind"] == "bars");
  CHECK(section["panels"][0]["series"][0]["low"][1].get<double>() == Approx(0.29));
  CHECK(drawn_data(sweep_page(example_report()))["sections"][0]["panels"][0]["kind"] == "lines");
}

TEST_CASE("bars on a terminal fit its width", "[eval]") {
  for (const size_t width : {40, 80, 200}) {
    const std::string bars = sweep_bars(example_report(), width);
    size_t begin = 0;
    for (size_t end = bars.find('\n'); end != std::string::npos; end = bars.find('\n', begin)) {
      CHECK(end - begin < std::max<size_t>(width, 50));
      begin = end + 1;
    }
    CHECK(count_of(bars, "|=") == 6);
  }
}

}  // namespace
}  // namespace moe::eval
