#include "core/data/examples.h"

#include <deque>
#include <exception>
#include <future>

#include "core/base/error.h"
#include "core/data/example_maker.h"
#include "core/data/records.h"

namespace moe::data {

namespace {

constexpr size_t kChunk_bytes = size_t{256} << 10;  // of records that a thread gets at once

// Neighbours in a file, and what stopped the reader behind them, if anything did.
struct Chunk {
  std::vector<Record> records;
  std::exception_ptr error;
};

// One file through one maker or several, its examples in order. An error of the reader is thrown
// behind those of the records before it, so the first fault in the file is the one that is told.
class FileStream {
 public:
  FileStream(const std::filesystem::path& file, int32_t index, const ReadSettings& settings,
             ExampleMaker& maker, const std::function<void(Example&&)>& sink)
      : name_(file.string()),
        index_(index),
        settings_(settings),
        reader_(file),
        maker_(maker),
        sink_(sink) {}

  FileForm run() {
    maker_.begin_file();
    const std::optional<Record> first = reader_.next();
    if (!first) {
      throw UserError("{}: the file holds no example", name_);
    }
    sink_(make(maker_, *first));  // settles the form, and the codec where the file has text
    read_ = 1;
    if (settings_.threads > 1) {
      run_threads();
    } else {
      run_here();
    }
    return {maker_.format(), reader_.packing()};
  }

 private:
  bool is_enough() const { return read_ == settings_.most_per_file; }

  Example make(ExampleMaker& maker, const Record& record) const {
    const std::string where = fmt::format("{} line {}", name_, record.line);
    Example example = maker.make(record, reader_.form(), where);
    example.file = index_;
    example.line = record.line;
    return example;
  }

  void run_here() {
    while (!is_enough()) {
      const std::optional<Record> record = reader_.next();
      if (!record) {
        return;
      }
      ++read_;
      sink_(make(maker_, *record));
    }
  }

  // The next records, none at the end of the file.
  Chunk read_chunk() {
    Chunk chunk;
    try {
      for (size_t bytes = 0; bytes < kChunk_bytes && !is_enough();) {
        std::optional<Record> record = reader_.next();
        if (!record) {
          break;
        }
        ++read_;
        bytes += record->text.size();
        chunk.records.push_back(std::move(*record));
      }
    } catch (const std::exception&) {
      chunk.error = std::current_exception();
    }
    return chunk;
  }

  void run_threads() {
    std::deque<std::future<std::vector<Example>>> pending;  // waits for its threads when destroyed
    const auto give_front = [&] {
      std::vector<Example> examples = pending.front().get();
      pending.pop_front();
      for (auto& example : examples) {
        sink_(std::move(example));
      }
    };
    std::exception_ptr error;
    while (error == nullptr) {
      Chunk chunk = read_chunk();
      error = chunk.error;
      if (chunk.records.empty()) {
        break;
      }
      pending.push_back(std::async(
          std::launch::async,
          [this](ExampleMaker maker, const std::vector<Record>& records) {
            std::vector<Example> examples;
            examples.reserve(records.size());
            for (const auto& record : records) {
              examples.push_back(make(maker, record));
            }
            return examples;
          },
          maker_, std::move(chunk.records)));
      if (pending.size() >= static_cast<size_t>(settings_.threads)) {
        give_front();
      }
    }
    while (!pending.empty()) {
      give_front();
    }
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }

  std::string name_;
  int32_t index_;
  const ReadSettings& settings_;
  RecordReader reader_;
  ExampleMaker& maker_;
  const std::function<void(Example&&)>& sink_;
  int64_t read_ = 0;  // records
};

}  // namespace

std::string FileForm::words() const {
  const std::string packed = packing_name(packing);
  return format_words(format) + (packed.empty() ? "" : ", " + packed);
}

std::vector<FileForm> stream_examples(const std::vector<Source>& sources,
                                      const ReadSettings& settings, int64_t vocab_size,
                                      const std::function<TextCodec()>& codec,
                                      const std::function<void(Example&&)>& sink) {
  MOE_CHECK(!sources.empty());
  ExampleMaker maker(settings, vocab_size, codec);
  std::vector<FileForm> forms;
  for (const auto& source : sources) {
    const auto index = static_cast<int32_t>(forms.size());
    forms.push_back(FileStream(source.file, index, settings, maker, sink).run());
  }
  return forms;
}

void describe_sources(const std::vector<Source>& sources, const std::vector<FileForm>& forms,
                      Examples& examples) {
  examples.files.clear();
  for (size_t index = 0; index < sources.size(); ++index) {
    examples.files.push_back(sources[index].file.string());
    examples.forms.push_back(forms.at(index).words());
    examples.all_rows = examples.all_rows && forms[index].format == Format::kRows;
    if (sources[index].weight > 0) {
      examples.weights.push_back(sources[index].weight);
    }
  }
  MOE_CHECK(examples.weights.empty() || examples.weights.size() == examples.files.size());
}

Examples read_examples(const std::vector<Source>& sources, const ReadSettings& settings,
                       int64_t vocab_size, const std::function<TextCodec()>& codec) {
  std::vector<Example> items;
  const auto forms = stream_examples(sources, settings, vocab_size, codec, [&](Example&& example) {
    items.push_back(std::move(example));
  });
  Examples examples =
      Examples::in_memory(std::move(items), std::vector<std::string>(sources.size()));
  describe_sources(sources, forms, examples);
  return examples;
}

Examples read_examples(const std::vector<std::filesystem::path>& files, Objective objective,
                       int64_t vocab_size, const std::function<TextCodec()>& codec) {
  std::vector<Source> sources;
  for (const auto& file : files) {
    sources.push_back({file});
  }
  ReadSettings settings;
  settings.objective = objective;
  return read_examples(sources, settings, vocab_size, codec);
}

}  // namespace moe::data
