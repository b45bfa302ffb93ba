#include "core/eval/formats/text.h"

#include "tests/support/catch.h"

namespace moe::eval {
namespace {

TEST_CASE("strip removes what Python calls white space, and nothing else", "[eval]") {
  CHECK(strip("  a b \t\r\n") == "a b");
  CHECK(strip("\u00A0\u2003\u3000x\u2028\u0085") == "x");
  CHECK(strip("\x1C\x1F x") == "x");
  CHECK(strip("\u200Bx\u200B") == "\u200Bx\u200B");  // a zero-width space is no white space
  CHECK(strip(" \n ").empty());
  CHECK(strip("").empty());
  CHECK(right_strip("  a \n\u00A0") == "  a");
  CHECK(right_strip("\u3000").empty());
}

TEST_CASE("capitalize lower-cases everything after the first letter", "[eval]") {
  // Every right-hand side is what python3.11 prints for str.capitalize().
  CHECK(capitalize("").empty());
  CHECK(capitalize("a few WOMEN of the USA") == "A few women of the usa");
  CHECK(capitalize("[title] Hello") == "[title] hello");
  CHECK(capitalize(" Leading Space") == " leading space");
  CHECK(capitalize("élan VITAL") == "Élan vital");
  CHECK(capitalize("ÉCOLE ÀÖØÞ×") == "École àöøþ×");
  CHECK(capitalize("ÿ Ÿ") == "Ÿ ÿ");
  CHECK(capitalize("ŁÓDŹ Ĳ ŽĀ") == "Łódź ĳ žā");
  CHECK(capitalize("ΑΘΗΝΑ Ώ Έ") == "Αθηνα ώ έ");
  CHECK(capitalize("МОСКВА Ёлка Ѐ") == "Москва ёлка ѐ");
  CHECK(capitalize("ßA") == "Ssa");
  CHECK(capitalize("İI") == "İi");
  CHECK(capitalize("aİ") == "Ai\u0307");
  CHECK(capitalize("日本A") == "日本a");
  CHECK(capitalize("µM") == "Μm");
}

TEST_CASE("lengths count code points, not bytes", "[eval]") {
  CHECK(count_code_points("") == 0);
  CHECK(count_code_points("100 °C") == 6);
  CHECK(count_code_points("日本👍e\u0301") == 5);
}

TEST_CASE("replace_all goes through once, left to right", "[eval]") {
  CHECK(replace_all("a    b", "  ", " ") == "a  b");  // four spaces become two, as str.replace
  CHECK(replace_all("aaa", "aa", "b") == "ba");
  CHECK(replace_all("", "x", "y").empty());
  CHECK(replace_all("3.5.", ".", ". ") == "3. 5. ");
}

}  // namespace
}  // namespace moe::eval
