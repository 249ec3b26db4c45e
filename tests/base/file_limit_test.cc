#include "base/file_limit.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace cadre {
namespace {

// Runs the check in a child with these limits, because a hard limit cannot be raised again.
// Returns whether the child saw what it expected.
bool WithLimits(rlim_t soft, rlim_t hard, const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
    _exit(setrlimit(RLIMIT_NOFILE, &limit) == 0 && check() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

rlim_t SoftLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

TEST(FileLimit, NamesTheLimitAndTheRemedy) {
  EXPECT_TRUE(WithLimits(20, 20, [] {
    const absl::Status status = CheckDescriptors(40);
    return absl::IsResourceExhausted(status) &&
           status.message().find("(RLIMIT_NOFILE) is 20, but 40 are needed") !=
               absl::string_view::npos &&
           status.message().find("ulimit -n 1024") != absl::string_view::npos;
  }));
}

TEST(FileLimit, RaisesTheSoftLimit) {
  EXPECT_TRUE(WithLimits(20, 64, [] { return CheckDescriptors(40).ok() && SoftLimit() == 40; }));
  EXPECT_TRUE(WithLimits(50, 64, [] { return CheckDescriptors(40).ok() && SoftLimit() == 50; }));
}

TEST(FileLimit, RaisesTheSoftLimitToTheHardOne) {
  EXPECT_TRUE(WithLimits(20, 64, [] {
    RaiseDescriptorLimit();
    return SoftLimit() == 64;
  }));
}

TEST(FileLimit, NamesTheLimitThatIsReached) {
  EXPECT_TRUE(WithLimits(64, 64, [] {
    if (!CheckFreeDescriptor().ok()) return false;
    int last = -1;
    while (true) {
      const int next = open("/dev/null", O_RDONLY);
      if (next < 0) break;
      last = next;
    }
    const absl::Status status = CheckFreeDescriptor();
    const bool named = absl::IsResourceExhausted(status) &&
                       status.message().find("open files (RLIMIT_NOFILE) is 64; raise it") !=
                           absl::string_view::npos;
    close(last);
    return named && CheckFreeDescriptor().ok();
  }));
}

TEST(FileLimit, OpenDescriptorsCount) {
  EXPECT_TRUE(WithLimits(64, 64, [] {
    if (!ReserveDescriptors(30).ok()) return false;
    for (int i = 0; i < 40; ++i) open("/dev/null", O_RDONLY);
    return absl::IsResourceExhausted(ReserveDescriptors(30));
  }));
}

}  // namespace
}  // namespace cadre
