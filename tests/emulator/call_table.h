// What the emulated CUDA and the fake NCCL share: tables of functions, counts of calls, and
// injected errors.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"

namespace cadre::emulated {

// A string literal as a template argument.
template <size_t kSize>
struct Literal {
  constexpr Literal(const char (&literal)[kSize]) { std::copy_n(literal, kSize, text); }  // NOLINT
  char text[kSize] = {};
};

// The functions of CUDA and NCCL have no object, so those of each table are bound to a slot, which
// an object takes for its lifetime. Result is the type that the functions return.
template <typename Object, typename Result, int kSlots>
class Slots {
 public:
  static int Take(Object* object) {
    for (int i = 0; i < kSlots; ++i) {
      Object* none = nullptr;
      if (objects[i].compare_exchange_strong(none, object)) return i;
    }
    LOG(FATAL) << "more than " << kSlots << " emulated objects at the same time";
  }
  static void Release(int slot) { objects[slot].store(nullptr, std::memory_order_release); }
  static Object& At(int slot) {
    Object* object = objects[slot].load(std::memory_order_acquire);
    CHECK(object != nullptr) << "an emulated function was called after its object's destruction";
    return *object;
  }

  // A function of a table: calls Object::Call with the function's name and a method.
  template <int kSlot, Literal kName, auto kMethod>
  static constexpr auto kCall =
      [](auto... arguments) -> Result { return At(kSlot).Call(kName.text, kMethod, arguments...); };

 private:
  static inline std::array<std::atomic<Object*>, kSlots> objects;
};

// Calls of functions by name, and the errors that tests inject into them.
template <typename Result>
class CallLog {
 public:
  // The next call of `function` after `after` others fails.
  void FailNext(absl::string_view function, Result error, int64_t after) {
    absl::MutexLock lock(&mutex_);
    faults_.push_back({std::string(function), error, after});
  }
  // Counts a call. Returns the injected error, or success.
  Result Enter(absl::string_view function) {
    absl::MutexLock lock(&mutex_);
    ++calls_[std::string(function)];
    for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
      if (fault->function != function || fault->after-- > 0) continue;
      const Result error = fault->error;
      faults_.erase(fault);
      return error;
    }
    return Result{};
  }
  // The number of calls since the start or Reset.
  int64_t calls(absl::string_view function) const {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(std::string(function));
    return found == calls_.end() ? 0 : found->second;
  }
  void Reset() {
    absl::MutexLock lock(&mutex_);
    calls_.clear();
  }

 private:
  struct Fault {
    std::string function;
    Result error;
    int64_t after;
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, int64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated
