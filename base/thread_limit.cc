#include "base/thread_limit.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace cadre {
namespace {

// The threads only wait. Less could be too little for the thread-local data of loaded libraries.
constexpr size_t kStackBytes = size_t{256} << 10;
// The control group at the root of the cgroup namespace: in a container, that of the container.
constexpr char kCgroupPids[] = "/sys/fs/cgroup/pids.max";

void* AwaitEnd(void* end) {
  static_cast<absl::Notification*>(end)->WaitForNotification();
  return nullptr;
}

void RaiseSoftLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NPROC, &limit);
}

// "the limit of processes of this user (RLIMIT_NPROC) is 60, and that of the control group
// (pids.max) is max".
std::string Limits() {
  rlimit limit{};
  getrlimit(RLIMIT_NPROC, &limit);
  const std::string of_user =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit.rlim_cur);
  std::ifstream file(kCgroupPids);
  std::string of_group;
  if (!(file >> of_group)) of_group = "unknown";
  return absl::StrCat("the limit of processes and threads of this user (RLIMIT_NPROC) is ", of_user,
                      ", and that of the control group (pids.max) is ", of_group);
}

}  // namespace

absl::Status ReserveThreads(int more) {
  RaiseSoftLimit();
  absl::Notification end;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  std::vector<pthread_t> threads;
  int error = 0;
  while (error == 0 && std::ssize(threads) < more) {
    pthread_t thread;
    error = pthread_create(&thread, &attributes, AwaitEnd, &end);
    if (error == 0) threads.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  end.Notify();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  // Other errors are due to the attributes, not to a limit.
  if (error != EAGAIN) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "only ", threads.size(), " of ", more, " threads can be started: ", Limits(),
      "; end other processes or raise the limit, for example with 'ulimit -u' before the start, "
      "TasksMax= of systemd, --pids-limit of a container, or podPidsLimit of a Kubernetes node"));
}

}  // namespace cadre
