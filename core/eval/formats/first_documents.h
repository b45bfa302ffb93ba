#pragma once
// Records to documents, as many as are wanted: a file of a million lines costs what its first ones
// cost.

#include "core/eval/formats/documents.h"

namespace moe::eval {

// `records` has next() and count_rest(): a JsonLinesReader, a CsvTable. `make` gives the document
// of one of them. Records beyond `limit` are counted alone.
template <typename Records, typename Make>
FirstDocuments first_documents(Records records, int64_t limit, const Make& make) {
  FirstDocuments first;
  for (; first.total < limit; ++first.total) {
    const auto record = records.next();
    if (!record) {
      return first;
    }
    first.documents.push_back(make(*record));
  }
  first.total += records.count_rest();
  return first;
}

}  // namespace moe::eval
