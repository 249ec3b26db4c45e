#include "tests/simulation/timeline.h"

#include <algorithm>
#include <utility>

namespace cadre::simulation {
namespace {

// Postponed work is looked at again after this time, because a gate may open early.
constexpr absl::Duration kLookAgain = absl::Seconds(1);

}  // namespace

bool Timeline::Step() {
  while (!entries_.empty()) {
    // top() is const, but the entry is removed immediately, so it may be moved from.
    Entry entry = std::move(const_cast<Entry&>(entries_.top()));
    entries_.pop();
    if (entry.bound && entry.watch.expired()) continue;
    if (entry.gate != nullptr && entry.gate->OpensAt() > entry.when) {
      // With its old number, so that postponed work keeps its order.
      entry.when = std::min(entry.gate->OpensAt(), entry.when + kLookAgain);
      entries_.push(std::move(entry));
      continue;
    }
    now_ = std::max(now_, entry.when);
    entry.work();
    return true;
  }
  return false;
}

void Timeline::Push(Entry entry) {
  entry.when = std::max(entry.when, now_);
  entry.number = ++pushed_;
  entries_.push(std::move(entry));
}

}  // namespace cadre::simulation
