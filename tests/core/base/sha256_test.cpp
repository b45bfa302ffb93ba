#include "core/base/sha256.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace moe {
namespace {

TEST_CASE("SHA-256 gives the digests of the examples of FIPS 180-4", "[base][sha256]") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on the pieces of its input", "[base][sha256]") {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7);
  }
  for (const size_t step : std::vector<size_t>{1, 55, 56, 63, 64, 65, 999}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += step) {
      hash.update(std::string_view(text).substr(at, step));
    }
    CHECK(hash.hex() == sha256_hex(text));
  }
}

}  // namespace
}  // namespace moe
