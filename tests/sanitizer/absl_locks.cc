// Annotates Abseil's locks for ThreadSanitizer. Linked into every program of a build with
// CADRE_SANITIZE=thread, and into no other.
//
// The Abseil that we link was built without ThreadSanitizer, which therefore sees no order between
// one critical section and the next, and would report every guarded field as a race. The functions
// below replace Abseil's: each calls the real one and annotates the order that a mutex guarantees:
// everything before Unlock happens before everything after the next Lock. Libraries that we link
// (gRPC) call ours, too, because the dynamic loader prefers a program's own symbols.
//
// The real functions may evaluate the Condition of another waiting thread; they hold the lock then,
// but ThreadSanitizer cannot detect that, so reads inside are ignored.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

#define CADRE_TEXT_OF(name) #name
#define CADRE_TEXT(name) CADRE_TEXT_OF(name)

// Finds Abseil's own definition of a function of absl, the next one after ours. `rest` is the
// mangled name after the namespaces; `start` is "_ZNK" for a const method.
template <typename Function>
Function Real(const char* rest, const char* start = "_ZN") {
  std::string name = std::string(start) + "4absl";
#if ABSL_OPTION_USE_INLINE_NAMESPACE == 1
  const std::string inline_namespace = CADRE_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  name += std::to_string(inline_namespace.size()) + inline_namespace;
#endif
  void* const found = dlsym(RTLD_NEXT, (name + rest).c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "absl_locks: this Abseil has no %s%s\n", name.c_str(), rest);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// Calls the real function, which may release `mutex` and acquires it again before it returns.
template <typename... Parameters, typename... Arguments>
auto Reacquire(auto(*real)(Parameters...), absl::Mutex* mutex, Arguments&&... arguments) {
  struct Acquire {
    absl::Mutex* mutex;
    ~Acquire() { __tsan_acquire(mutex); }
  };
  __tsan_release(mutex);
  const Acquire acquire{mutex};
  const IgnoreReads ignore;
  return real(arguments...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  if (!real(this)) return false;
  __tsan_acquire(this);
  return true;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

bool Mutex::ReaderTryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("5Mutex13ReaderTryLockEv");
  if (!real(this)) return false;
  __tsan_acquire(this);
  return true;
}

void Mutex::Unlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}

void Mutex::Await(const Condition& cond) {
  static const auto real =
      Real<void (*)(Mutex*, const Condition*)>("5Mutex5AwaitERKNS0_9ConditionE");
  Reacquire(real, this, this, &cond);
}

bool Mutex::AwaitWithTimeout(const Condition& cond, absl::Duration timeout) {
  static const auto real = Real<bool (*)(Mutex*, const Condition*, absl::Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return Reacquire(real, this, this, &cond, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& cond, absl::Time deadline) {
  static const auto real = Real<bool (*)(Mutex*, const Condition*, absl::Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Reacquire(real, this, this, &cond, deadline);
}

// As Abseil documents, waits that lock are equal to a lock followed by a wait.
void Mutex::LockWhen(const Condition& cond) {
  Lock();
  Await(cond);
}

bool Mutex::LockWhenWithTimeout(const Condition& cond, absl::Duration timeout) {
  Lock();
  return AwaitWithTimeout(cond, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& cond, absl::Time deadline) {
  Lock();
  return AwaitWithDeadline(cond, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Reacquire(real, mutex, this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, absl::Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return Reacquire(real, mutex, this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, absl::Time)>(
      "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return Reacquire(real, mutex, this, mutex, deadline);
}

void Notification::Notify() {
  static const auto real = Real<void (*)(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real =
      Real<void (*)(const Notification*)>("12Notification19WaitForNotificationEv", "_ZNK");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  static const auto real = Real<bool (*)(const Notification*, absl::Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", "_ZNK");
  const bool notified = real(this, timeout);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(absl::Time deadline) const {
  static const auto real = Real<bool (*)(const Notification*, absl::Time)>(
      "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE", "_ZNK");
  const bool notified = real(this, deadline);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
