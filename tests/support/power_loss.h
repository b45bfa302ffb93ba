#pragma once
// State of a folder after a power loss at any point: replays the record of
// tests/support/write_recorder.cpp in memory. Bytes and length of a file are kept by syncing the
// file, its name by syncing its folder (the guarantee of POSIX, less than that of journaling file
// systems). A Loss decides about data that was not synced.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

struct RecordedWrite {
  char operation = 0;  // listed in write_recorder.cpp
  uint64_t inode = 0, number = 0;
  std::string first, second;
};

inline std::vector<RecordedWrite> read_record(const fs::path& file) {
  const std::string bytes = read_file(file);
  std::vector<RecordedWrite> record;
  for (size_t at = 0; at < bytes.size();) {
    constexpr size_t kHead = 1 + 8 + 8 + 4 + 4;
    REQUIRE(at + kHead <= bytes.size());
    RecordedWrite one;
    uint32_t first = 0, second = 0;
    one.operation = bytes[at];
    std::memcpy(&one.inode, &bytes[at + 1], 8);
    std::memcpy(&one.number, &bytes[at + 9], 8);
    std::memcpy(&first, &bytes[at + 17], 4);
    std::memcpy(&second, &bytes[at + 21], 4);
    REQUIRE(at + kHead + first + second <= bytes.size());
    one.first = bytes.substr(at + kHead, first);
    one.second = bytes.substr(at + kHead + first, second);
    at += kHead + first + second;
    record.push_back(std::move(one));
  }
  return record;
}

// Data that is kept although it was not synced.
enum class Loss {
  kNothing,  // no data are lost, as after SIGKILL
  kAll,
  kBytes,  // names are kept, bytes lost: empty or shorter files
  kNames,  // bytes are kept, names lost
  kSome,   // names up to a random point in time; all, none or some bytes of each file
};

// The files of a folder by path below it; folders end in a slash and are empty.
using Tree = std::map<std::string, std::string>;

class ReplayedFolder {
 public:
  // `root`: WRITE_RECORDER_ROOT. Files that existed before the record are not part of the folder.
  explicit ReplayedFolder(std::string root) : root_(std::move(root)) { top_->is_folder = true; }

  void replay(const RecordedWrite& one) {
    ++time_;
    switch (one.operation) {
      case 'C':
        make(one);
        break;
      case 'W':
        write(*node(one.inode), one.number, one.first);
        break;
      case 'T':
        node(one.inode)->bytes.resize(one.number);
        break;
      case 'S':
        sync(one.inode);
        break;
      case 'R':
        rename(one);
        break;
      case 'U':
        names_of(parent(one.first)).erase(name(one.first));
        note(parent(one.first));
        break;
      default:
        FAIL("unknown operation in the record");
    }
  }

  Tree after(Loss loss, std::mt19937& random) const {
    Tree tree;
    const uint64_t names_until = loss == Loss::kNothing || loss == Loss::kBytes ? time_
                                 : loss == Loss::kSome ? random() % (time_ + 1)
                                                       : 0;
    collect(*top_, "", loss, names_until, random, tree);
    return tree;
  }

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool is_folder = false;
    std::string bytes, synced_bytes;
    Names names;
    uint64_t synced_at = 0;
    std::vector<std::pair<uint64_t, Names>> past;  // names of a folder from that time on
  };

  std::string below(const std::string& path) const {
    REQUIRE(path.starts_with(root_));
    return path.size() == root_.size() ? "" : path.substr(root_.size() + 1);
  }
  std::shared_ptr<Node> at(const std::string& path) const {
    std::shared_ptr<Node> found = top_;
    for (const auto& part : fs::path(below(path))) {
      const auto next = found->names.find(part.string());
      REQUIRE(next != found->names.end());
      found = next->second;
    }
    return found;
  }
  std::string parent(const std::string& path) const {
    return fs::path(path).parent_path().string();
  }
  std::string name(const std::string& path) const { return fs::path(path).filename().string(); }
  Names& names_of(const std::string& folder) { return at(folder)->names; }
  void note(const std::string& folder) {
    const auto node = at(folder);
    node->past.emplace_back(time_, node->names);
  }
  std::shared_ptr<Node> node(uint64_t inode) {
    const auto found = by_inode_.find(inode);
    REQUIRE(found != by_inode_.end());
    return found->second;
  }

  void make(const RecordedWrite& one) {
    const auto made = std::make_shared<Node>();
    made->is_folder = one.number == 1;
    by_inode_[one.inode] = made;
    names_of(parent(one.first))[name(one.first)] = made;
    note(parent(one.first));
  }
  static void write(Node& file, uint64_t offset, const std::string& bytes) {
    file.bytes.resize(std::max<size_t>(file.bytes.size(), offset + bytes.size()));
    file.bytes.replace(offset, bytes.size(), bytes);
  }
  void sync(uint64_t inode) {
    const auto found = by_inode_.find(inode);  // the root itself was made before the record began
    Node& synced = found == by_inode_.end() ? *top_ : *found->second;
    synced.synced_bytes = synced.bytes;
    synced.synced_at = time_;
  }
  void rename(const RecordedWrite& one) {
    const auto from = at(one.first);
    Names& source = names_of(parent(one.first));
    Names& target = names_of(parent(one.second));
    if (one.number == 1) {
      std::swap(source[name(one.first)], target[name(one.second)]);
    } else {
      source.erase(name(one.first));
      target[name(one.second)] = from;
    }
    note(parent(one.first));
    note(parent(one.second));
  }

  static const Names& names_at(const Node& folder, uint64_t time) {
    static const Names none;
    const Names* names = &none;
    for (const auto& [since, then] : folder.past) {
      if (since <= time) {
        names = &then;
      }
    }
    return *names;
  }
  static std::string bytes_after(const Node& file, Loss loss, std::mt19937& random) {
    if (loss == Loss::kNothing || loss == Loss::kNames) {
      return file.bytes;
    }
    if (loss != Loss::kSome || random() % 2 == 0) {
      return file.synced_bytes;
    }
    // From a random offset on the bytes are the synced ones, zero or cut off.
    std::string bytes = file.bytes;
    const size_t end = random() % (bytes.size() + 1);
    for (size_t i = end; i < bytes.size(); ++i) {
      bytes[i] = i < file.synced_bytes.size() ? file.synced_bytes[i] : '\0';
    }
    if (random() % 2 == 0) {
      bytes.resize(std::max(end, std::min(bytes.size(), file.synced_bytes.size())));
    }
    return bytes;
  }
  static void collect(const Node& folder, const std::string& path, Loss loss, uint64_t names_until,
                      std::mt19937& random, Tree& tree) {
    for (const auto& [name, node] : names_at(folder, std::max(names_until, folder.synced_at))) {
      if (node->is_folder) {
        tree[path + name + "/"] = "";
        collect(*node, path + name + "/", loss, names_until, random, tree);
      } else {
        tree[path + name] = bytes_after(*node, loss, random);
      }
    }
  }

  std::string root_;
  uint64_t time_ = 0;
  std::shared_ptr<Node> top_ = std::make_shared<Node>();
  std::map<uint64_t, std::shared_ptr<Node>> by_inode_;
};

inline void write_tree(const fs::path& folder, const Tree& tree) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [path, bytes] : tree) {
    if (path.back() == '/') {
      fs::create_directories(folder / path);
    } else {
      write_file(folder / path, bytes);
    }
  }
}

inline Tree read_tree(const fs::path& folder) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().lexically_relative(folder).string();
    if (entry.is_directory()) {
      tree[path + "/"] = "";
    } else {
      tree[path] = read_file(entry.path());
    }
  }
  return tree;
}

// The part of a tree below a folder ("run/final/").
inline Tree part_of(const Tree& tree, const std::string& folder) {
  Tree part;
  for (const auto& [path, bytes] : tree) {
    if (path.starts_with(folder) && path != folder) {
      part[path.substr(folder.size())] = bytes;
    }
  }
  return part;
}

}  // namespace moe::test
