#include "tests/simulation/timeline.h"

#include <algorithm>
#include <utility>

namespace cadre::simulation {

bool Timeline::Step() {
  while (!entries_.empty()) {
    // top() is const, but the entry is removed immediately, so it may be moved from.
    Entry entry = std::move(const_cast<Entry&>(entries_.top()));
    entries_.pop();
    if (entry.bound && entry.watch.expired()) continue;
    now_ = std::max(now_, entry.when);
    entry.work();
    return true;
  }
  return false;
}

void Timeline::Push(absl::Time when, bool bound, std::weak_ptr<const char> watch, Work work) {
  entries_.push({std::max(when, now_), ++pushed_, bound, std::move(watch), std::move(work)});
}

}  // namespace cadre::simulation
