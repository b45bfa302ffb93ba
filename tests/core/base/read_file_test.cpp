// Files, pipes, sockets, folders and devices are read or refused; only allowed pipes may block.
#include "core/base/read_file.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>
#include <thread>

#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe {
namespace {

using namespace moe::test;

std::string path(const TempDir& dir, const char* name) { return (dir / name).string(); }

TEST_CASE("A small file of any size is read whole", "[base]") {
  const TempDir dir;
  for (const size_t size : {0, 1, 65535, 65536, 65537, 300000}) {
    std::string text(size, 'x');
    for (size_t i = 0; i < size; i += 7) {
      text[i] = static_cast<char>(i);  // NUL and every other byte
    }
    test::write_file(dir / "f", text);
    CHECK(read_small_file(dir / "f") == text);
    CHECK(read_small_file(dir / "f", size) == text);
    CHECK(read_start(open_to_read(dir / "f"), 1000) == text.substr(0, 1000));
  }
  CHECK_THAT(user_error_of([&] { read_small_file(dir / "f", 299999); }),
             contains_text(path(dir, "f") + ": has more than the 299999 bytes"));
  CHECK(read_small_file("/proc/self/stat").size() > 10);  // its size is unknown before it is read
}

TEST_CASE("A path that is no regular file is refused without blocking", "[base]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("loop", dir / "loop");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path(dir, "socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const bool has_socket =
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const auto refusal = [&](const std::string& file, Pipes pipes) {
    return user_error_of([&] { read_small_file(file, kMaxSmallFileBytes, pipes); });
  };
  for (const std::string& file : {path(dir, "pipe"), std::string("/dev/zero")}) {
    CHECK_THAT(refusal(file, Pipes::kRefused), contains_text(file + ": is not a regular file"));
  }
  for (const Pipes pipes : {Pipes::kRefused, Pipes::kAllowed}) {
    for (const auto& [name, fact] : {std::pair("folder", ": is a folder"),
                                     {"none", ": no such file"},
                                     {"loop", ": cannot be read: "},
                                     {has_socket ? "socket" : "none", ": "}}) {
      CHECK_THAT(refusal(path(dir, name), pipes), contains_text(path(dir, name) + fact));
    }
  }
  ::close(socket);
}

TEST_CASE("An allowed pipe is read to the end, also if its writer is late and slow", "[base]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ofstream out(dir / "pipe");
    for (int i = 0; i < 3; ++i) {
      out << std::string(100000, static_cast<char>('a' + i)) << std::flush;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const std::string text = read_small_file(dir / "pipe", kMaxSmallFileBytes, Pipes::kAllowed);
  writer.join();
  CHECK(text == std::string(100000, 'a') + std::string(100000, 'b') + std::string(100000, 'c'));
  CHECK_THAT(user_error_of([] { read_small_file("/dev/zero", 1 << 20, Pipes::kAllowed); }),
             contains_text("/dev/zero: has more than the 1048576 bytes"));
  CHECK(read_small_file("/dev/null", 1, Pipes::kAllowed).empty());
}

TEST_CASE("Lines of any length are read, the last one with or without its newline", "[base]") {
  const TempDir dir;
  const std::string long_line(200000, 'y');
  test::write_file(dir / "f", "a\n\n" + long_line + "\nlast");
  FileReader all(dir / "f");
  std::vector<std::string> lines;
  for (std::string line; all.read_line(line);) {
    lines.push_back(line);
  }
  CHECK(lines == std::vector<std::string>{"a", "", long_line, "last"});
  FileReader whole(dir / "f");
  int64_t count = 0;
  for (std::string line; whole.read_whole_line(line);) {
    ++count;
  }
  CHECK(count == 3);
  FileReader limited(dir / "f");
  std::string line;
  CHECK(limited.read_line(line, 1000));
  CHECK(limited.read_line(line, 1000));
  CHECK_THAT(user_error_of([&] { limited.read_line(line, 1000); }),
             contains_text(path(dir, "f") + ": has a line of more than 1000 bytes"));
}

TEST_CASE("A reader is a stream buffer that reads blocks, seeks and returns the rest", "[base]") {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 60000; ++i) {
    text += fmt::format("{:05} ", i);
  }
  test::write_file(dir / "f", text);
  FileReader reader(dir / "f");
  std::string block(100, '\0'), rest(text.size(), '\0');
  CHECK(reader.sgetn(block.data(), 100) == 100);
  CHECK(block == text.substr(0, 100));
  CHECK(reader.sbumpc() == text[100]);
  CHECK(reader.sgetn(rest.data(), static_cast<std::streamsize>(rest.size())) ==
        static_cast<std::streamsize>(text.size() - 101));
  CHECK(rest.substr(0, text.size() - 101) == text.substr(101));
  CHECK(reader.sgetc() == std::char_traits<char>::eof());
  reader.seek(12345);
  CHECK(reader.sgetc() == text[12345]);
  CHECK(reader.read_rest(text.size()) == text.substr(12345));
}

}  // namespace
}  // namespace moe
