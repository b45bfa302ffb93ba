#include "core/io/checkpoint.h"

#include <algorithm>

#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace fs = std::filesystem;
using moe::Json;
using moe::io::Checkpoint;
using moe::io::DType;
using moe::test::TempDir;
using moe::test::TinyCheckpoint;
using moe::test::user_error_of;

namespace {

// The message of opening `folder`, which is called M in it.
std::string open_error(const std::filesystem::path& folder) {
  const std::string message = user_error_of([&] { Checkpoint checkpoint(folder); });
  const std::string path = folder.string();
  std::string out;
  size_t begin = 0;
  for (auto at = message.find(path); at != std::string::npos; at = message.find(path, begin)) {
    out.append(message, begin, at - begin).append(1, 'M');
    begin = at + path.size();
  }
  return out.append(message, begin);
}

TinyCheckpoint sharded() {
  TinyCheckpoint options;
  options.shard_bytes = 6000;
  return options;
}

void edit_index(const std::filesystem::path& folder, const std::function<void(Json&)>& edit) {
  const auto path = folder / "model.safetensors.index.json";
  Json index = moe::read_json(path);
  edit(index);
  moe::test::write_file(path, index.dump());
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("one file and many shards hold the same model, in every floating dtype", "[io]") {
  for (const auto dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TempDir dir;
    TinyCheckpoint options;
    options.dtype = dtype;
    moe::test::write_tiny_checkpoint(dir / "one", options);
    options.shard_bytes = 3000;
    moe::test::write_tiny_checkpoint(dir / "many", options);
    const Checkpoint one(dir / "one"), many(dir / "many");
    CHECK(std::filesystem::exists(dir / "one" / "model.safetensors"));
    CHECK_FALSE(std::filesystem::exists(dir / "many" / "model.safetensors"));
    REQUIRE(one.tensors().size() == 30);  // 3 layers of 9, embedding, norm, head
    REQUIRE(many.tensors().size() == 30);
    int64_t total = 0;
    for (const auto& tensor : one.tensors()) {
      CHECK(many.info(tensor.name).shape == tensor.shape);
      CHECK(many.info(tensor.name).dtype == dtype);
      CHECK(text_of(many.bytes(tensor.name)) == text_of(one.bytes(tensor.name)));
      total += tensor.bytes();
    }
    const Json index = moe::read_json(dir / "many" / "model.safetensors.index.json");
    CHECK(index["metadata"]["total_size"] == total);
    CHECK(index["weight_map"].size() == 30);
    CHECK(index["weight_map"]["model.embed_tokens.weight"].get<std::string>().starts_with(
        "model-00001-of-000"));
  }
}

TEST_CASE("shards are filled in order and none exceeds its size unless one tensor does", "[io]") {
  const TempDir dir;
  std::vector<moe::io::TensorSource> sources;
  for (const int64_t bytes : {4, 4, 0, 3, 20, 1, 9}) {
    const auto name = fmt::format("t{}", sources.size());
    sources.push_back({{name, DType::kU8, {bytes}}, [bytes](moe::io::SafetensorsWriter& writer) {
                         const std::string text(static_cast<size_t>(bytes), 'x');
                         writer.write(std::as_bytes(std::span(text)));
                       }});
  }
  std::vector<uint64_t> told;
  CHECK(moe::io::write_tensors(dir.path(), sources, 10,
                               [&](uint64_t bytes) { told.push_back(bytes); }) == 41);
  CHECK(told == std::vector<uint64_t>{4, 8, 8, 11, 31, 32, 41});
  const Json map = moe::read_json(dir / "model.safetensors.index.json")["weight_map"];
  std::string shards;  // t0 t1 t2 | t3 | t4 | t5 t6
  for (const auto& [name, shard] : map.items()) {
    shards += shard.get<std::string>().substr(6, 5) + " ";
  }
  CHECK(shards == "00001 00001 00001 00002 00003 00004 00004 ");
  CHECK(map["t0"] == "model-00001-of-00004.safetensors");
}

TEST_CASE("a source that sends the wrong number of bytes is our own mistake", "[io]") {
  const TempDir dir;
  const std::vector<moe::io::TensorSource> sources = {
      {{"a", DType::kU8, {2}}, [](moe::io::SafetensorsWriter&) {}},
      {{"b", DType::kU8, {2}}, [](moe::io::SafetensorsWriter& writer) {
         writer.write(std::as_bytes(std::span("1234", 4)));
       }}};
  CHECK_THROWS_AS(moe::io::write_tensors(dir.path(), sources, 100), std::logic_error);
}

TEST_CASE("what is no model folder is refused in one sentence", "[io]") {
  const TempDir dir;
  CHECK(open_error(dir / "none") == "M: no such folder");
  std::filesystem::create_directories((dir / "none").string() + ".partial/old");
  CHECK(open_error(dir / "none") ==
        "M: no such folder; a run was killed while it replaced it, the old one is M.partial/old: "
        "rename it");
  moe::test::write_file(dir / "file", "x");
  CHECK(open_error(dir / "file") == "M: is a file; give the model folder that holds config.json");
  std::filesystem::create_directories(dir / "empty");
  CHECK(open_error(dir / "empty") ==
        "M: has no config.json; a model folder holds config.json and model.safetensors");
  moe::test::write_file(dir / "list" / "config.json", "[]");
  CHECK(open_error(dir / "list") == "M/config.json: must be a JSON object");
  moe::test::write_file(dir / "bare" / "config.json", "{}");
  CHECK(open_error(dir / "bare") ==
        "M: has neither model.safetensors nor model.safetensors.index.json; fetch the weights");
  moe::test::write_file(dir / "bare" / "pytorch_model.bin", "");
  CHECK(open_error(dir / "bare") ==
        "M: has pytorch_model.bin only, a Python pickle; convert it with: python -c \"from "
        "transformers import "
        "AutoModelForCausalLM as M; M.from_pretrained('M').save_pretrained('M')\"");
}

TEST_CASE("an index that disagrees with its shards is refused by tensor and shard", "[io]") {
  const TempDir dir;
  const auto folder = dir / "m";
  moe::test::write_tiny_checkpoint(folder, sharded());
  REQUIRE(open_error(folder).empty());
  const auto error_after = [&](const std::function<void(Json&)>& edit) {
    const auto path = folder / "model.safetensors.index.json";
    const std::string before = moe::test::read_file(path);
    edit_index(folder, edit);
    const std::string message = open_error(folder);
    moe::test::write_file(path, before);
    return message;
  };
  const std::string index = "M/model.safetensors.index.json: ";
  CHECK(error_after([](Json& json) {
          json["weight_map"]["extra"] = json["weight_map"]["lm_head.weight"];
        }) == index +
                  "says that 'extra' is in shard 'model-00006-of-00006.safetensors', which does "
                  "not hold it; fetch both "
                  "again");
  CHECK(error_after([](Json& json) { json["weight_map"].erase("lm_head.weight"); }) ==
        index +
            "does not list 'lm_head.weight', which shard 'model-00006-of-00006.safetensors' holds; "
            "fetch both "
            "again");
  CHECK(error_after([](Json& json) {
          json["weight_map"]["lm_head.weight"] = json["weight_map"]["model.embed_tokens.weight"];
        }) == index +
                  "says that 'lm_head.weight' is in shard 'model-00001-of-00006.safetensors', "
                  "which does not hold "
                  "it; fetch both again");
  CHECK(error_after([](Json& json) { json["weight_map"]["x"] = "model-9.safetensors"; }) ==
        index + "names the shard 'model-9.safetensors', which is not in the folder; fetch it");
  CHECK(error_after([](Json& json) { json["weight_map"]["x"] = "../secret.safetensors"; }) ==
        index +
            "'x' is said to be in '../secret.safetensors', which is no file name in this folder");
  CHECK(error_after([](Json& json) { json["weight_map"]["x"] = ".."; }) ==
        index + "'x' is said to be in '..', which is no file name in this folder");
  CHECK(error_after([](Json& json) { json["weight_map"]["x"] = 3; }) ==
        index + "'x' must be a string, is 3");
  CHECK(error_after([](Json& json) { json["weight_map"] = Json::object(); }) ==
        index + "its 'weight_map' is empty; fetch it again");
  CHECK(error_after([](Json& json) { json.erase("weight_map"); }) ==
        index + "has no 'weight_map' object; fetch it again");
  CHECK(error_after([](Json& json) { json = Json::array(); }) ==
        index + "has no 'weight_map' object; fetch it again");
}

TEST_CASE("a tensor in two shards is refused", "[io]") {
  const TempDir dir;
  const auto folder = dir / "m";
  moe::test::write_tiny_checkpoint(folder, sharded());
  std::filesystem::copy_file(folder / "model-00001-of-00006.safetensors",
                             folder / "model-00007-of-00006.safetensors");
  edit_index(folder,
             [](Json& json) { json["weight_map"]["x"] = "model-00007-of-00006.safetensors"; });
  CHECK(open_error(folder) ==
        "M: 'model.embed_tokens.weight' is in model-00001-of-00006.safetensors and in "
        "model-00007-of-00006.safetensors; fetch the folder again");
}

TEST_CASE("a missing or truncated shard is named", "[io]") {
  const TempDir dir;
  const auto folder = dir / "m";
  moe::test::write_tiny_checkpoint(folder, sharded());
  const auto shard = folder / "model-00003-of-00006.safetensors";
  const auto size = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, size - 1);
  const std::string message = open_error(folder);
  CHECK(message.starts_with("M/model-00003-of-00006.safetensors: truncated: header says "));
  CHECK(message.ends_with("; fetch it again"));
  std::filesystem::remove(shard);
  CHECK(open_error(folder) ==
        "M/model.safetensors.index.json: names the shard 'model-00003-of-00006.safetensors', "
        "which is not in the folder; fetch it");
}

TEST_CASE("a tensor that nobody has is missing by name", "[io]") {
  const TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "m");
  const Checkpoint checkpoint(dir / "m");
  CHECK(checkpoint.has("model.norm.weight"));
  CHECK_FALSE(checkpoint.has("model.norm.bias"));
  const std::string expected = (dir / "m").string() + ": tensor 'model.norm.bias' is missing";
  CHECK(user_error_of([&] { checkpoint.info("model.norm.bias"); }) == expected);
  CHECK(user_error_of([&] { checkpoint.bytes("model.norm.bias"); }) == expected);
}

TEST_CASE("a folder of links, as the hub's cache lays it out, is opened and copied", "[io]") {
  const TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "blobs");
  moe::test::write_file(dir / "blobs" / "tok", "bytes");
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
    CHECK(moe::test::read_file(dir / "out" / "tokenizer.json") == "bytes");
  }
}

TEST_CASE("a link out of the folder is not copied, one within it is", "[io]") {
  const TempDir dir;
  const fs::path from = dir / "from";
  moe::test::write_file(dir / "key", "secret");
  moe::test::write_file(from / "real.json", "bytes");
  fs::create_directories(dir / "to");
  fs::create_symlink("real.json", from / "tokenizer.json");
  fs::create_symlink(dir / "nothing", from / "added_tokens.json");
  moe::io::copy_tokenizer_files(from, dir / "to");
  CHECK(moe::test::read_file(dir / "to" / "tokenizer.json") == "bytes");
  CHECK_FALSE(fs::exists(dir / "to" / "added_tokens.json"));
  SECTION("to a file of the user") {
    fs::create_symlink(dir / "key", from / "generation_config.json");
  }
  SECTION("by way of a folder within") {
    fs::create_directory_symlink(dir.path(), from / "sub");
    fs::create_symlink("sub/key", from / "generation_config.json");
  }
  SECTION("to what only looks like the hub's cache") {
    fs::create_directories(dir / "blobs");
    fs::create_symlink(dir / "key", dir / "blobs" / "b");
    fs::create_symlink(dir / "blobs" / "b", from / "generation_config.json");
  }
  CHECK(user_error_of([&] { moe::io::copy_tokenizer_files(from, dir / "to"); }) ==
        (from / "generation_config.json").string() + ": is a link to " + (dir / "key").string() +
            ", outside of its folder, and will not be copied; put the file itself there, or "
            "remove the link");
  CHECK_FALSE(fs::exists(dir / "to" / "generation_config.json"));
}

TEST_CASE("a copied file keeps its mode, names only near ours are not copied", "[io]") {
  const TempDir dir;
  fs::create_directories(dir / "to");
  for (const char* name : {"tokenizer.json", "tokenizer.key", "chat_template.bak"}) {
    moe::test::write_file(dir / "from" / name, "bytes");
  }
  fs::permissions(dir / "from" / "tokenizer.json", fs::perms(0600));
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  CHECK(fs::status(dir / "to" / "tokenizer.json").permissions() == fs::perms(0600));
  CHECK(std::distance(fs::directory_iterator(dir / "to"), fs::directory_iterator()) == 1);
}

TEST_CASE("tokenizer and generation files are copied, and nothing else", "[io]") {
  const TempDir dir;
  const std::vector<std::string> copied = {"added_tokens.json",      "chat_template.jinja",
                                           "generation_config.json", "special_tokens_map.json",
                                           "tokenizer.json",         "tokenizer.model",
                                           "tokenizer_config.json"};
  for (const auto& name : copied) {
    moe::test::write_file(dir / "from" / name, "content of " + name);
  }
  for (const char* name : {"config.json", "model.safetensors", "README.md", "tokenizer_old/x"}) {
    moe::test::write_file(dir / "from" / name, "not this");
  }
  std::filesystem::create_directories(dir / "to");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  std::vector<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "to")) {
    there.push_back(entry.path().filename().string());
    CHECK(moe::test::read_file(entry.path()) == "content of " + there.back());
  }
  std::sort(there.begin(), there.end());
  CHECK(there == copied);
  moe::io::copy_tokenizer_files(dir / "to", dir / "to");  // onto itself: nothing is lost
  CHECK(moe::test::read_file(dir / "to" / "tokenizer.json") == "content of tokenizer.json");
}

TEST_CASE("a tokenizer.model without tokenizer_config.json gets LLaMA's", "[io]") {
  const TempDir dir;
  std::filesystem::create_directories(dir / "to");
  moe::test::write_file(dir / "from" / "tokenizer.json", "{}");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  CHECK_FALSE(
      std::filesystem::exists(dir / "to" / "tokenizer_config.json"));  // Llama 3: another class
  moe::test::write_file(dir / "from" / "tokenizer.model", "m");
  moe::io::copy_tokenizer_files(dir / "from", dir / "to");
  CHECK(moe::read_json(dir / "to" / "tokenizer_config.json") ==
        Json({{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"legacy", true}}));
}

TEST_CASE("space is asked for before the first byte, at the nearest folder that exists", "[io]") {
  const TempDir dir;
  moe::io::check_space(dir / "a" / "b", 1);
  moe::io::check_space("relative/none", 1);
  const std::string message =
      user_error_of([&] { moe::io::check_space(dir / "a", uint64_t{1} << 62); });
  CHECK(message.starts_with((dir / "a").string() + ": disk full: 4.6 EB are needed, "));
  CHECK(message.ends_with(" are free; free some space or write to another disk"));
}

TEST_CASE("sizes are printed for people", "[io]") {
  CHECK(moe::io::size_text(0) == "0 bytes");
  CHECK(moe::io::size_text(999) == "999 bytes");
  CHECK(moe::io::size_text(1000) == "1.0 kB");
  CHECK(moe::io::size_text(999'960) == "1.0 MB");
  CHECK(moe::io::size_text(13'476'839'424) == "13.5 GB");
  CHECK(moe::io::size_text(~uint64_t{0}) == "18.4 EB");
}

TEST_CASE("the real model's folder is read", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Checkpoint checkpoint(moe::test::shared_data() / "stories260K-hf");
  CHECK(checkpoint.config()["vocab_size"] == 512);
  CHECK(checkpoint.info("model.embed_tokens.weight").shape == std::vector<int64_t>{512, 64});
  int64_t elements = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    elements += tensor.elements();
  }
  CHECK(elements ==
        264128 - 2 * 512 * 4);  // the count of data/README.md without the cos and sin tables
}

TEST_CASE("the tests' halves are rounded to nearest, ties to even", "[io]") {
  CHECK(moe::test::to_bf16(1.0F) == 0x3F80);
  CHECK(moe::test::to_bf16(1.00390625F) == 0x3F80);   // halfway between 1 and 1 + 2^-7: even
  CHECK(moe::test::to_bf16(-1.01171875F) == 0xBF82);  // halfway again: up to even
  CHECK(moe::test::to_f16(0.0F) == 0);
  CHECK(moe::test::to_f16(1.0F) == 0x3C00);
  CHECK(moe::test::to_f16(-2.0F) == 0xC000);
  CHECK(moe::test::to_f16(0.333251953125F) == 0x3555);
  CHECK(moe::test::to_f16(65504.0F) == 0x7BFF);
  CHECK(moe::test::to_f16(0x1p-14F) == 0x0400);  // smallest normal
  CHECK(moe::test::to_f16(0x1p-24F) == 0x0001);  // smallest of all
  CHECK(moe::test::to_f16(0x1p-26F) == 0x0000);
}
