// The parent's last learning rate, of every place that knows it, and of files that are damaged.

#include "core/train/observe/metrics.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::train;
using moe::test::TempDir;
using moe::test::write_file;

TEST_CASE("a run's last rate is that of its last whole line", "[train]") {
  const TempDir dir;
  const auto metrics = dir / "run/metrics.jsonl";
  write_file(dir / "run/final/config.json", "{}");
  CHECK_FALSE(last_learning_rate(dir / "run/final"));  // no run beside it
  write_file(metrics, R"({"step": 1, "lr": 0.5}
{"step": 2, "lr": 0.25}
{"step": 2, "held_out_loss": 1}
{"step": 3, "lr": 0.1)");
  CHECK(last_learning_rate(dir / "run/final") == 0.25);
  CHECK(last_learning_rate(dir / "run/final/") == 0.25);
  CHECK_FALSE(last_learning_rate(dir / "run"));
  write_file(metrics, "{\"step\": 1, \"lr\": \"much\"}\n");
  CHECK_FALSE(last_learning_rate(dir / "run/final"));
  write_file(metrics, "{\"step\": 1, \"lr\": 0.5}\nno JSON\n");
  CHECK_FALSE(last_learning_rate(dir / "run/final"));
}

TEST_CASE("a checkpoint and a mixture know the rate wherever they lie", "[train]") {
  const TempDir dir;
  LogState state;
  state.history.add({{"step", 1}, {"lr", 0.5}}, "line 1");
  state.history.add({{"step", 2}, {"lr", 0.125}}, "line 2");
  std::filesystem::create_directories(dir / "checkpoint");
  write_log_state(state, dir / "checkpoint");
  CHECK(last_learning_rate(dir / "checkpoint") == 0.125);
  write_file(dir / "checkpoint/history.json", "{");
  CHECK_FALSE(last_learning_rate(dir / "checkpoint"));

  write_file(dir / "moe/upcycle.json", R"({"source": {"last_learning_rate": 0.25}})");
  CHECK(last_learning_rate(dir / "moe") == 0.25);
  for (const char* damaged : {"{", "[]", R"({"source": 3})", R"({"source": {}})"}) {
    CAPTURE(damaged);
    write_file(dir / "moe/upcycle.json", damaged);
    CHECK_FALSE(last_learning_rate(dir / "moe"));
  }
  CHECK_FALSE(last_learning_rate(dir / "nowhere"));
}
