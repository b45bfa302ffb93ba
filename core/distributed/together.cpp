#include "core/distributed/together.h"

#include "core/base/error.h"
#include "core/distributed/own_work.h"

namespace moe::distributed {
namespace {

// The first letter of what a rank tells the others.
constexpr char kUser = 'u', kInterrupt = 'i', kOther = 'o';

std::string outcome(Comm& comm, const std::function<void()>& body) {
  const auto working = own_work(comm);
  try {
    body();
    return "";
  } catch (const UserError& error) {
    return kUser + std::string(error.what());
  } catch (const Interrupted& stopped) {
    return kInterrupt + std::string(stopped.what());
  } catch (const std::exception& error) {
    return kOther + std::string(error.what());
  }
}

}  // namespace

void together(Comm& comm, const std::function<void()>& body) {
  if (comm.size() == 1) {
    return body();
  }
  const auto outcomes = gather_texts(comm, outcome(comm, body));
  for (const char kind : {kUser, kInterrupt, kOther}) {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (outcomes[rank].empty() || outcomes[rank].front() != kind) {
        continue;
      }
      const std::string sentence = outcomes[rank].substr(1);
      if (kind == kUser) {
        throw UserError("{}", sentence);
      }
      if (kind == kInterrupt) {
        throw Interrupted(sentence);
      }
      throw std::runtime_error(fmt::format("rank {}: {}", rank, sentence));
    }
  }
}

}  // namespace moe::distributed
