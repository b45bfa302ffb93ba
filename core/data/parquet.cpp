// libmoe_parquet.so: the rows of a Parquet file as JSON lines, read with the Arrow C++ libraries. A
// batch of rows is in memory at a time; it is validated before it is read.

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "core/data/records.h"

namespace {

using Json = nlohmann::ordered_json;
using moe::UserError;
using moe::data::BrokenStream;

constexpr int64_t kBatchRows = 256;
constexpr int kMaxDepth = 32;

void check(const arrow::Status& status) {
  if (!status.ok()) {
    throw BrokenStream("the Parquet data are damaged (" + status.message() +
                       "); fetch the file again");
  }
}

template <typename Value>
Value check(arrow::Result<Value> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

template <typename ArrayType>
const ArrayType& as(const arrow::Array& array) {
  return static_cast<const ArrayType&>(array);
}

Json to_json(const arrow::Array& array, int64_t row, int depth);

template <typename ListType>
Json list_to_json(const ListType& list, int64_t row, int depth) {
  Json values = Json::array();
  const auto begin = static_cast<int64_t>(list.value_offset(row));
  const auto count = static_cast<int64_t>(list.value_length(row));
  for (int64_t at = begin; at < begin + count; ++at) {
    values.push_back(to_json(*list.values(), at, depth));
  }
  return values;
}

Json struct_to_json(const arrow::StructArray& array, int64_t row, int depth) {
  Json object = Json::object();
  for (int field = 0; field < array.num_fields(); ++field) {
    object[array.struct_type()->field(field)->name()] = to_json(*array.field(field), row, depth);
  }
  return object;
}

// Values that are neither text, number, bool, list nor struct become text as Arrow prints them.
Json to_json(const arrow::Array& array, int64_t row, int depth) {
  if (depth > kMaxDepth) {
    throw BrokenStream("the columns are nested too deep for training data");
  }
  if (array.IsNull(row)) {
    return nullptr;
  }
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return as<arrow::StringArray>(array).GetString(row);
    case arrow::Type::LARGE_STRING:
      return as<arrow::LargeStringArray>(array).GetString(row);
    case arrow::Type::BOOL:
      return as<arrow::BooleanArray>(array).Value(row);
    case arrow::Type::INT32:
      return as<arrow::Int32Array>(array).Value(row);
    case arrow::Type::INT64:
      return as<arrow::Int64Array>(array).Value(row);
    case arrow::Type::INT8:
      return as<arrow::Int8Array>(array).Value(row);
    case arrow::Type::INT16:
      return as<arrow::Int16Array>(array).Value(row);
    case arrow::Type::UINT16:
      return as<arrow::UInt16Array>(array).Value(row);
    case arrow::Type::UINT32:
      return as<arrow::UInt32Array>(array).Value(row);
    case arrow::Type::FLOAT:
      return as<arrow::FloatArray>(array).Value(row);
    case arrow::Type::DOUBLE:
      return as<arrow::DoubleArray>(array).Value(row);
    case arrow::Type::LIST:
      return list_to_json(as<arrow::ListArray>(array), row, depth + 1);
    case arrow::Type::LARGE_LIST:
      return list_to_json(as<arrow::LargeListArray>(array), row, depth + 1);
    case arrow::Type::STRUCT:
      return struct_to_json(as<arrow::StructArray>(array), row, depth + 1);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      return to_json(*dictionary.dictionary(), dictionary.GetValueIndex(row), depth + 1);
    }
    default:
      return check(array.GetScalar(row))->ToString();
  }
}

class ParquetBuffer : public std::streambuf {
 public:
  explicit ParquetBuffer(const std::string& file) {
    parquet::ReaderProperties reading = parquet::default_reader_properties();
    reading.enable_buffered_stream();  // a page at a time, not a whole column chunk
    parquet::ArrowReaderProperties arrow_side;
    arrow_side.set_batch_size(kBatchRows);
    arrow_side.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(check(arrow::io::ReadableFile::Open(file)), reading));
    check(builder.properties(arrow_side)->Build(&reader_));
    batches_ = check(reader_->GetRecordBatchReader());
  }

 protected:
  int_type underflow() override {
    try {
      while (batch_ == nullptr || row_ == batch_->num_rows()) {
        check(batches_->ReadNext(&batch_));
        if (batch_ == nullptr) {
          return traits_type::eof();
        }
        check(batch_->ValidateFull());
        row_ = 0;
      }
      Json record = Json::object();
      for (int column = 0; column < batch_->num_columns(); ++column) {
        record[batch_->column_name(column)] = to_json(*batch_->column(column), row_, 0);
      }
      line_ = record.dump() + "\n";
      ++row_;
    } catch (const BrokenStream&) {
      throw;
    } catch (const Json::exception&) {  // from dump()
      throw BrokenStream("the Parquet row holds text that is not UTF-8; fetch the file again");
    } catch (const std::exception& error) {  // Parquet's own
      throw BrokenStream(
          fmt::format("the Parquet row cannot be read ({}); fetch the file again", error.what()));
    }
    setg(line_.data(), line_.data(), line_.data() + line_.size());
    return traits_type::to_int_type(*gptr());
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;  // the one being given out
  int64_t row_ = 0;                            // of batch_, the next
  std::string line_;
};

}  // namespace

extern "C" std::streambuf* moe_open_parquet(const char* file) {
  try {
    return std::make_unique<ParquetBuffer>(file).release();
  } catch (const std::exception& error) {
    throw UserError("{}: {}", file, error.what());
  }
}
