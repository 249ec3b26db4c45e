// Virtual time: a queue of scheduled work.
//
// The work of a process is scheduled with its Lifetime and is dropped if that has ended, so a
// killed process does nothing more. Work for equal times runs in the order of scheduling.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "absl/time/time.h"

namespace cadre::simulation {

// Postpones work: nothing that is scheduled behind it runs before `until`. A thread's gate lies
// behind that of its process.
struct Gate {
  absl::Time until = absl::InfinitePast();
  const Gate* outer = nullptr;

  absl::Time OpensAt() const {
    return outer == nullptr ? until : std::max(until, outer->OpensAt());
  }
};

// The lifetime of a process, stream or call. Its End or its destructor drops the work that was
// scheduled with it.
class Lifetime {
 public:
  // `gate` may be null; otherwise it must outlive the timeline.
  explicit Lifetime(const Gate* gate = nullptr) : gate_(gate) {}

  std::weak_ptr<const char> watch() const { return token_; }
  const Gate* gate() const { return gate_; }
  void End() { token_ = std::make_shared<char>(); }

 private:
  const Gate* const gate_;
  std::shared_ptr<const char> token_ = std::make_shared<char>();
};

class Timeline {
 public:
  using Work = std::function<void()>;

  absl::Time now() const { return now_; }
  // Since the start of the simulation.
  absl::Duration elapsed() const { return now_ - start_; }

  void At(absl::Time when, const Lifetime& life, Work work) {
    Push({.when = when,
          .bound = true,
          .watch = life.watch(),
          .gate = life.gate(),
          .work = std::move(work)});
  }
  void After(absl::Duration delay, const Lifetime& life, Work work) {
    At(now_ + delay, life, std::move(work));
  }
  // Work of the simulation itself, which is never dropped.
  void After(absl::Duration delay, Work work) {
    Push({.when = now_ + delay, .work = std::move(work)});
  }

  // Runs the next work. Returns false if there is none.
  bool Step();

 private:
  struct Entry {
    absl::Time when;
    uint64_t number = 0;
    bool bound = false;
    std::weak_ptr<const char> watch;
    const Gate* gate = nullptr;
    Work work;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.number > b.number;
    }
  };

  void Push(Entry entry);

  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
  absl::Time now_ = start_;
  uint64_t pushed_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, Later> entries_;
};

}  // namespace cadre::simulation
