#include "core/base/json.h"
#include "core/base/text.h"
#include "tests/support/catch.h"

TEST_CASE("a message is one line, and words of any length in it are cut", "[base]") {
  CHECK(moe::message_text("a\nb \x1b") == "a\\nb \\x1b");
  const std::string longest(200, 'x'), longer(201, 'x');
  CHECK(moe::message_text(longest + " is") == longest + " is");
  CHECK(moe::message_text("of " + longer + " and " + longer) ==
        "of " + longer.substr(0, 99) + ".." + longer.substr(0, 99) + " and " +
            longer.substr(0, 99) + ".." + longer.substr(0, 99));
  std::string letters;
  while (letters.size() < 400) {
    letters += "\u00e4\u20ac";  // 2 and 3 bytes: a cut at 99 falls into a letter
  }
  const std::string cut = moe::message_text(letters);
  CHECK(cut.size() <= 200);
  CHECK(cut.find("\\x") == std::string::npos);
  CHECK(moe::message_text(cut) == cut);  // well-formed
  std::string words;
  while (words.size() < 9000) {
    words += "word ";
  }
  CHECK(moe::message_text(words).size() == 4000);
}

TEST_CASE("text of others on a terminal is letters, and what it would obey is spelt out",
          "[base]") {
  const std::string plain = "layer \xC3\xBC, \xE6\xBC\xA2, \xF0\x9F\x98\x80, 5 %";
  CHECK(moe::terminal_text(plain) == plain);
  CHECK(moe::terminal_text(plain, true) == plain);
  CHECK(moe::terminal_text("a\tb\nc\r") == "a\tb\nc\\x0d");
  CHECK(moe::terminal_text("a\tb\nc\r", true) == "a\\x09b\\nc\\x0d");
  CHECK(moe::terminal_text("\x1B[31m\x7F\x9B\xC2\x9B.") == "\\x1b[31m\\x7f\\x9b\\x9b.");
  CHECK(moe::terminal_text("a\xE2\x80\xAE"
                           "b\xE2\x81\xA6") == "a\\u{202e}b\\u{2066}");
  CHECK(moe::terminal_text(std::string("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("JSON for a terminal says the same text in escapes", "[base]") {
  const std::string text = "a\x1b[31m\x7f\u009b\u202e\u00fc\n";
  const std::string shown = moe::json_text(text);
  CHECK(shown == "\"a\\u001b[31m\\u007f\\u009b\\u202e\u00fc\\n\"");
  CHECK(moe::Json::parse(shown) == text);
  CHECK(moe::json_text(std::string("broken \xff")) == "\"broken \ufffd\"");
}

TEST_CASE("a number is written with a comma a thousand", "[base]") {
  using moe::grouped;
  CHECK((grouped(0) == "0" && grouped(999) == "999" && grouped(1000) == "1,000"));
  CHECK((grouped(-1234567) == "-1,234,567" && grouped(-999) == "-999"));
}
