#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

std::string golden(const std::string& name) {
  return read_file(moe::test::source_folder() / "tests" / "golden" / name);
}

bool has_parquet() {
  const std::string error = error_of_reading("a.parquet", golden("orca.parquet"));
  return error.find("build moe with MOE_PARQUET") == std::string::npos;
}

}  // namespace

TEST_CASE("Without Arrow a Parquet file is refused with the command that converts it", "[data]") {
  if (has_parquet()) {
    MOE_SKIP("built with MOE_PARQUET");
  }
  CHECK_THAT(error_of_reading("orca.parquet", golden("orca.parquet")),
             contains_text("orca.parquet: a Parquet file") &&
                 contains_text("build moe with MOE_PARQUET") &&
                 contains_text("p.ParquetFile('orca.parquet').iter_batches() for r in "
                               "b.to_pylist()]\" > data.jsonl"));
}

TEST_CASE("Parquet rows give the same examples as JSON lines", "[data]") {
  if (!has_parquet()) {
    MOE_SKIP("built without MOE_PARQUET");
  }
  const Examples orca = read_bytes("a.parquet", golden("orca.parquet"));
  CHECK(orca.forms.at(0) == "OpenOrca records, Parquet");
  REQUIRE(orca.size() == 3);
  CHECK(show_ids(orca.at(0)) == "BQ?\nRE");
  CHECK(show_ids(orca.at(1)) == "BS\n\xC3\xA9\nrE");
  CHECK(show_labels(orca.at(1)) == "......rE");
  CHECK(orca.at(2).line == 3);
  CHECK(show_ids(read_bytes("a", golden("chat.parquet")).at(0)) == "Bq\naE");
  CHECK(show_labels(read_bytes("a", golden("rows.parquet")).at(0)) == "..B");
}

TEST_CASE("A truncated Parquet file is refused, and a damaged one does not crash", "[data]") {
  if (!has_parquet()) {
    MOE_SKIP("built without MOE_PARQUET");
  }
  const std::string whole = golden("orca.parquet");
  CHECK_THAT(error_of_reading("a.parquet", "PAR1\x15\x04xyzPAR1"),
             contains_text("a.parquet: the Parquet data"));
  for (size_t length = 4; length < whole.size(); ++length) {
    CHECK_FALSE(error_of_reading("a.parquet", whole.substr(0, length)).empty());
  }
  for (size_t at = 4; at < whole.size(); ++at) {  // no checksums: an error, or other records
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    error_of_reading("a.parquet", damaged);
  }
}
