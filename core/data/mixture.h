#pragma once
// The order of examples in an epoch of files that are mixed by weight.
//
// An epoch draws as many examples as the files hold together. Whose turn it is follows Tijdeman's
// rule ("The chairman assignment problem", Discrete Mathematics 32, 1980): after any n draws every
// file has had its share of n to within one, so a batch of any size is mixed as asked and nothing
// of it is random. Within a file the examples come in that file's own order, pass after pass: a
// file larger than its share is not used up in one epoch and goes on in the next, a smaller one
// begins again, each pass with a new shuffle. All of it follows from (seed, epoch), so a cursor
// needs no more than the epoch.

#include <cstdint>
#include <string>
#include <vector>

namespace moe::data {

struct MixedFile {
  int64_t begin = 0;  // its examples stand at begin..begin+count-1
  int64_t count = 0;  // at least one
  double weight = 0;  // > 0
};

class Mixture {
 public:
  // `names`: what the files are called in errors. UserError: a weight so small that an epoch would
  // draw nothing of its file.
  Mixture(std::vector<MixedFile> files, const std::vector<std::string>& names);

  // The examples of an epoch in their order.
  std::vector<int64_t> order(bool shuffle, uint64_t seed, int64_t epoch) const;
  int64_t draws(size_t file) const { return draws_[file]; }  // of an epoch

 private:
  std::vector<MixedFile> files_;
  std::vector<size_t> turns_;   // the file of each draw of an epoch
  std::vector<int64_t> draws_;  // an epoch, one a file
};

}  // namespace moe::data
