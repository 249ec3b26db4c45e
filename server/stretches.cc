#include "server/stretches.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre {
namespace {

constexpr int64_t kStretch = 64 << 10;

class Stretches {
 public:
  Stretches(const StretchRule& rule, Interval span, const StretchWork& compute,
            const StretchWork& append)
      : rule_(rule),
        span_(span),
        compute_(compute),
        append_(append),
        next_(span.begin),
        appended_(span.begin) {}

  // The first stretch that is not appended yet is always computed by some thread, so its turn
  // comes.
  void Work(int thread) {
    while (const std::optional<Interval> stretch = Claim()) {
      const absl::Status computed = compute_(thread, *stretch);
      absl::MutexLock lock(&mutex_);
      const auto is_turn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return appended_ == stretch->begin || !status_.ok();
      };
      mutex_.Await(absl::Condition(&is_turn));
      if (!status_.ok()) return;
      status_ = computed.ok() ? append_(thread, *stretch) : computed;
      appended_ = stretch->end;
    }
  }

  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  std::optional<Interval> Claim() {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || next_ == span_.end) return std::nullopt;
    const int64_t begin = next_;
    next_ = StretchEnd(rule_, span_, begin);
    return Interval{begin, next_};
  }

  const StretchRule rule_;
  const Interval span_;
  const StretchWork& compute_;
  const StretchWork& append_;
  mutable absl::Mutex mutex_;
  // Beginning of the next stretch that no thread has claimed.
  int64_t next_ ABSL_GUARDED_BY(mutex_);
  // End of the last stretch that was appended.
  int64_t appended_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

int64_t StretchEnd(const StretchRule& rule, Interval span, int64_t begin) {
  const ExchangeUnits* const units = rule.units;
  if (rule.fragments > 1) span.end = std::min(span.end, units->StripeEnd(begin, rule.fragments));
  if (span.end - begin <= kStretch) return span.end;
  return units == nullptr ? begin + kStretch : units->BorderAfter(begin + kStretch - kUnitSize);
}

absl::Status ForEachStretch(const StretchRule& rule, Interval span, int threads,
                            const StretchWork& compute, const StretchWork& append) {
  Stretches stretches(rule, span, compute, append);
  // About the number of stretches; more threads would be idle.
  const int64_t useful = std::clamp<int64_t>((span.size() + kStretch - 1) / kStretch, 1, threads);
  std::vector<std::thread> others;
  for (int thread = 1; thread < useful; ++thread) {
    others.emplace_back([&stretches, thread] { stretches.Work(thread); });
  }
  stretches.Work(0);
  for (std::thread& other : others) other.join();
  return stretches.status();
}

}  // namespace cadre
