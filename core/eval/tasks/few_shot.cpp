#include "core/eval/tasks/few_shot.h"

#include <numeric>

#include "core/base/error.h"

namespace moe::eval {

ShotSampler::ShotSampler(const Task& task, const std::vector<Document>& pool, int64_t count)
    : task_(task), pool_(pool), count_(count), random_(kShotSeed) {
  const bool spare = task.shots.excludes_question;  // one more is drawn
  const auto available = static_cast<int64_t>(pool.size()) - (spare ? 1 : 0);
  if (count > 0 && count > available) {
    throw UserError("task {}: {} examples are wanted, {} has {}{}; give a smaller --num-fewshot",
                    task.name, count, pool.empty() ? "its file" : pool.front().where, pool.size(),
                    spare ? ", one of which is kept in reserve" : "");
  }
}

std::vector<size_t> ShotSampler::draw(const OrderedJson& document) {
  std::vector<size_t> drawn(static_cast<size_t>(count_));
  if (task_.shots.sampler == ShotRule::Sampler::kFirst) {
    std::iota(drawn.begin(), drawn.end(), size_t{0});
    return drawn;
  }
  const bool spare = task_.shots.excludes_question;
  const auto indices =
      random_.sample(pool_.size(), static_cast<uint64_t>(count_) + (spare ? 1 : 0));
  drawn.clear();
  for (const uint64_t index : indices) {
    if (static_cast<int64_t>(drawn.size()) < count_ &&
        !(spare && pool_[index].fields == document)) {
      drawn.push_back(index);
    }
  }
  if (static_cast<int64_t>(drawn.size()) == count_) {
    return drawn;
  }
  // The pool holds the question more than once: drawn again from what is left without it.
  std::vector<size_t> others;
  for (size_t i = 0; i < pool_.size(); ++i) {
    if (pool_[i].fields != document) {
      others.push_back(i);
    }
  }
  if (static_cast<int64_t>(others.size()) < count_) {
    throw UserError("task {}: {} examples are wanted, {} are left besides the question itself",
                    task_.name, count_, others.size());
  }
  drawn.clear();
  for (const uint64_t index : random_.sample(others.size(), static_cast<uint64_t>(count_))) {
    drawn.push_back(others[index]);
  }
  return drawn;
}

std::string ShotSampler::before(const OrderedJson& document) {
  std::string text = task_.description;
  if (count_ > 0) {
    for (const size_t index : draw(document)) {
      text += shot_text(task_, pool_[index]) + task_.shot_delimiter;
    }
  }
  return text;
}

std::string shot_text(const Task& task, const Document& document) {
  const Target target = task.target(document.fields);
  const auto choice = [&]() -> std::string {
    const std::vector<std::string> choices = task.choices(document.fields);
    const int64_t index = target.index.value_or(-1);
    if (index < 0 || index >= static_cast<int64_t>(choices.size())) {
      throw UserError("{}: the right choice is number {}, there are {}", document.where, index,
                      choices.size());
    }
    return choices[static_cast<size_t>(index)];
  };
  if (task.choices_are_contexts) {
    return choice() + task.delimiter + target.text;
  }
  return task.prompt(document.fields) + task.delimiter +
         (target.index && target.text.empty() ? choice() : target.text);
}

}  // namespace moe::eval
