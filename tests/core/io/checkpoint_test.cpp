#include "core/io/checkpoint.h"

#include <algorithm>

#include "core/io/file.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::io::Checkpoint;
using moe::io::DType;
using namespace moe::test;

namespace {

std::string open_error(const fs::path& folder) {
  return user_error_of([&] { Checkpoint checkpoint(folder); });
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes a model of six shards.
fs::path write_shards(const TempDir& dir) {
  write_tiny_checkpoint(dir / "m", {.shard_bytes = 6000});
  return dir / "m";
}

constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

TEST_CASE("One file and several shards hold the same model in every floating dtype") {
  for (const auto dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TempDir dir;
    write_tiny_checkpoint(dir / "one", {.dtype = dtype});
    write_tiny_checkpoint(dir / "many", {.dtype = dtype, .shard_bytes = 3000});
    const Checkpoint one(dir / "one"), many(dir / "many");
    CHECK(fs::exists(dir / "one" / "model.safetensors"));
    CHECK_FALSE(fs::exists(dir / "many" / "model.safetensors"));
    REQUIRE(one.tensors().size() == 30);  // 3 layers of 9, embedding, norm, head
    REQUIRE(many.tensors().size() == 30);
    int64_t total = 0;
    for (const auto& tensor : one.tensors()) {
      CHECK(many.info(tensor.name).shape == tensor.shape);
      CHECK(many.info(tensor.name).dtype == dtype);
      CHECK(text_of(many.bytes(tensor.name)) == text_of(one.bytes(tensor.name)));
      total += tensor.bytes();
    }
    const Json index = moe::read_json(dir / "many" / kIndex);
    CHECK(index["metadata"]["total_size"] == total);
    CHECK(index["weight_map"].size() == 30);
    CHECK(index["weight_map"]["model.embed_tokens.weight"].get<std::string>().starts_with(
        "model-00001-of-000"));
  }
}

TEST_CASE("Shards are filled in order and hold at most their size, or one tensor") {
  const TempDir dir;
  std::vector<moe::io::TensorSource> sources;
  for (const int64_t bytes : {4, 4, 0, 3, 20, 1, 9}) {
    const auto name = fmt::format("t{}", sources.size());
    sources.push_back({{name, DType::kU8, {bytes}}, [bytes](moe::io::SafetensorsWriter& writer) {
                         const std::string text(static_cast<size_t>(bytes), 'x');
                         writer.write(std::as_bytes(std::span(text)));
                       }});
  }
  std::vector<uint64_t> progress;
  CHECK(moe::io::write_tensors(dir.path(), sources, 10,
                               [&](uint64_t bytes) { progress.push_back(bytes); }) == 41);
  CHECK(progress == std::vector<uint64_t>{4, 8, 8, 11, 31, 32, 41});
  const Json map = moe::read_json(dir / kIndex)["weight_map"];
  std::string shards;  // t0 t1 t2 | t3 | t4 | t5 t6
  for (const auto& [name, shard] : map.items()) {
    shards += shard.get<std::string>().substr(6, 5) + " ";
  }
  CHECK(shards == "00001 00001 00001 00002 00003 00004 00004 ");
  CHECK(map["t0"] == "model-00001-of-00004.safetensors");
}

TEST_CASE("A folder that holds no model is refused with the missing part") {
  const TempDir dir;
  CHECK_THAT(open_error(dir / "none"), contains_text("none: no such folder"));
  fs::create_directories(dir / "none.partial/old");
  CHECK_THAT(open_error(dir / "none"), contains_text((dir / "none.partial/old").string()));
  write_file(dir / "file", "x");
  CHECK_THAT(open_error(dir / "file"), contains_text("file: is a file"));
  fs::create_directories(dir / "empty");
  CHECK_THAT(open_error(dir / "empty"), contains_text("empty: has no config.json"));
  write_file(dir / "list" / "config.json", "[]");
  CHECK_THAT(open_error(dir / "list"), contains_text("config.json: must be a JSON object"));
  write_file(dir / "bare" / "config.json", "{}");
  CHECK_THAT(open_error(dir / "bare"),
             contains_text("has neither model.safetensors nor model.safetensors.index.json"));
  write_file(dir / "bare" / "pytorch_model.bin", "");
  CHECK_THAT(open_error(dir / "bare"),
             contains_text("pytorch_model.bin") && contains_text("convert it with: python"));
}

TEST_CASE("An index that disagrees with its shards is refused with tensor and shard") {
  const TempDir dir;
  const fs::path folder = write_shards(dir);
  REQUIRE(open_error(folder).empty());
  const Json index = moe::read_json(folder / kIndex);
  const auto refuse = [&](const Json& changed, const std::string& fact) {
    write_file(folder / kIndex, changed.dump());
    CHECK_THAT(open_error(folder),
               contains_text((folder / kIndex).string() + ": ") && contains_text(fact));
  };
  for (const auto& [changes, fact] : std::vector<std::pair<const char*, const char*>>{
           {R"({"extra": "model-00006-of-00006.safetensors"})",
            "'extra' is in shard 'model-00006-of-00006.safetensors', which does not hold it"},
           {R"({"lm_head.weight": null})",
            "'lm_head.weight', which shard 'model-00006-of-00006.safetensors' holds"},
           {R"({"lm_head.weight": "model-00001-of-00006.safetensors"})",
            "'lm_head.weight' is in shard 'model-00001-of-00006.safetensors', which does not"},
           {R"({"x": "model-9.safetensors"})", "'model-9.safetensors', which is not in the folder"},
           {R"({"x": "../secret.safetensors"})",
            "'x' is listed in '../secret.safetensors', which is not a file name"},
           {R"({"x": ".."})", "'x' is listed in '..', which is not a file name"},
           {R"({"x": 3})", "'x' must be a string, is 3"}}) {
    Json changed = index;
    changed["weight_map"].merge_patch(Json::parse(changes));
    refuse(changed, fact);
  }
  refuse({{"weight_map", Json::object()}}, "'weight_map' is empty");
  refuse(Json::object(), "has no 'weight_map' object");
  refuse(Json::array(), "has no 'weight_map' object");
}

TEST_CASE("A shard that repeats a tensor, is truncated or missing is refused by name") {
  const TempDir dir;
  const fs::path folder = write_shards(dir);
  const std::string index = read_file(folder / kIndex);
  const fs::path first = folder / "model-00001-of-00006.safetensors";
  fs::copy_file(first, folder / "model-00007-of-00006.safetensors");
  Json changed = Json::parse(index);
  changed["weight_map"]["x"] = "model-00007-of-00006.safetensors";
  write_file(folder / kIndex, changed.dump());
  CHECK_THAT(open_error(folder), contains_text("'model.embed_tokens.weight' is in "
                                               "model-00001-of-00006.safetensors and in "
                                               "model-00007-of-00006.safetensors"));
  write_file(folder / kIndex, index);
  fs::resize_file(first, fs::file_size(first) - 1);
  CHECK(open_error(folder).starts_with(first.string() + ": truncated: header says "));
  fs::remove(first);
  CHECK_THAT(open_error(folder),
             contains_text("'" + first.filename().string() + "', which is not"));
}

TEST_CASE("A tensor that is not in the model is named") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "m");
  const Checkpoint checkpoint(dir / "m");
  CHECK(checkpoint.has("model.norm.weight"));
  CHECK_FALSE(checkpoint.has("model.norm.bias"));
  const auto fact = contains_text("'model.norm.bias' is missing");
  CHECK_THAT(user_error_of([&] { checkpoint.info("model.norm.bias"); }), fact);
  CHECK_THAT(user_error_of([&] { checkpoint.bytes("model.norm.bias"); }), fact);
}

TEST_CASE("A folder of links, such as a snapshot of the Hub's cache, is opened and copied") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "blobs");
  write_file(dir / "blobs" / "tok", "bytes");
  const fs::path snapshot = dir / "snapshots" / "a1b2";
  fs::create_directories(snapshot);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  fs::create_symlink("../../blobs/tok", snapshot / "tokenizer.json");
  fs::create_directory_symlink(snapshot, dir / "main");
  CHECK(Checkpoint(snapshot).tensors().size() == 30);
  for (const fs::path& from : {snapshot, dir / "main"}) {
    fs::remove_all(dir / "out");
    fs::create_directories(dir / "out");
    moe::io::copy_tokenizer_files(from, dir / "out");
    CHECK(fs::is_regular_file(fs::symlink_status(dir / "out" / "tokenizer.json")));
    CHECK(read_file(dir / "out" / "tokenizer.json") == "bytes");
  }
}

TEST_CASE("A link within the folder is copied, a link out of it is refused") {
  const TempDir dir;
  const fs::path from = dir / "from";
  write_file(dir / "key", "secret");
  write_file(from / "real.json", "bytes");
  fs::create_directories(dir / "to");
  fs::create_symlink("real.json", from / "tokenizer.json");
  fs::create_symlink(dir / "nothing", from / "added_tokens.json");
  moe::io::copy_tokenizer_files(from, dir / "to");
  CHECK(read_file(dir / "to" / "tokenizer.json") == "bytes");
  CHECK_FALSE(fs::exists(dir / "to" / "added_tokens.json"));
  const fs::path link = from / "generation_config.json";
  SECTION("a link to a file of the user") { fs::create_symlink(dir / "key", link); }
  SECTION("a link through a linked folder") {
    fs::create_directory_symlink(dir.path(), from / "sub");
    fs::create_symlink("sub/key", link);
  }
  SECTION("a link through a folder that has the name of the Hub's cache") {
    fs::create_directories(dir / "blobs");
    fs::create_symlink(dir / "key", dir / "blobs" / "b");
    fs::create_symlink(dir / "blobs" / "b", link);
  }
  CHECK_THAT(user_error_of([&] { moe::io::copy_tokenizer_files(from, dir / "to"); }),
             contains_text(link.string() + ": is a link to " + (dir / "key").string()));
  CHECK_FALSE(fs::exists(dir / "to" / "generation_config.json"));
}

TEST_CASE("Only tokenizer and generation files are copied, with their modes") {
  const TempDir dir;
  const std::vector<std::string> copied = {"added_tokens.json",      "chat_template.jinja",
                                           "generation_config.json", "special_tokens_map.json",
                                           "tokenizer.json",         "tokenizer.model",
                                           "tokenizer_config.json"};
  for (const auto& name : copied) {
    write_file(dir / "from" / name, "content of " + name);
  }
  for (const char* name : {"config.json", "model.safetensors", "README.md", "tokenizer_old/x",
                           "tokenizer.key", "chat_template.bak"}) {
    write_file(dir / "from" / name, "not copied");
  }
  fs::permissions(dir / "from" / "tokenizer.json", fs::perms(0600));
  fs::create_directories(dir / "to");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(dir / "to")) {
    found.push_back(entry.path().filename().string());
    CHECK(read_file(entry.path()) == "content of " + found.back());
  }
  std::sort(found.begin(), found.end());
  CHECK(found == copied);
  CHECK(fs::status(dir / "to" / "tokenizer.json").permissions() == fs::perms(0600));
  moe::io::copy_tokenizer_files(dir / "to", dir / "to");  // onto itself
  CHECK(read_file(dir / "to" / "tokenizer.json") == "content of tokenizer.json");
}

TEST_CASE("A tokenizer.model without tokenizer_config.json gets LLaMA's") {
  const TempDir dir;
  fs::create_directories(dir / "to");
  write_file(dir / "from" / "tokenizer.json", "{}");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  CHECK_FALSE(fs::exists(dir / "to" / "tokenizer_config.json"));  // Llama 3 has another class
  write_file(dir / "from" / "tokenizer.model", "m");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  CHECK(moe::read_json(dir / "to" / "tokenizer_config.json") ==
        Json({{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"legacy", false}}));
}

TEST_CASE("The free space is checked at the nearest folder that exists") {
  const TempDir dir;
  moe::io::check_space(dir / "a" / "b", 1);
  moe::io::check_space("relative/none", 1);
  CHECK_THAT(user_error_of([&] { moe::io::check_space(dir / "a", uint64_t{1} << 62); }),
             contains_text((dir / "a").string() + ": disk full: 4.6 EB are needed, "));
}

TEST_CASE("Sizes are printed in decimal units") {
  for (const auto& [bytes, text] :
       std::vector<std::pair<uint64_t, const char*>>{{0, "0 bytes"},
                                                     {999, "999 bytes"},
                                                     {1000, "1.0 kB"},
                                                     {999'960, "1.0 MB"},
                                                     {13'476'839'424, "13.5 GB"},
                                                     {~uint64_t{0}, "18.4 EB"}}) {
    CHECK(moe::io::size_text(bytes) == text);
  }
}
