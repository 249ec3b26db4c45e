#include "base/thread_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace cadre {
namespace {

// Without processes of its own. The superuser has no limit.
constexpr uid_t kOtherUser = 54321;

// Runs the check in a child with these limits as a user without other processes. Returns whether
// the child saw what it expected.
bool WithLimits(rlim_t soft, rlim_t hard, const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
    _exit(setrlimit(RLIMIT_NPROC, &limit) == 0 && setuid(kOtherUser) == 0 && check() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class ThreadLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "only the superuser can become a user without processes";
  }
};

TEST_F(ThreadLimitTest, NamesTheLimitAndTheRemedy) {
  EXPECT_TRUE(WithLimits(10, 10, [] {
    const absl::Status status = ReserveThreads(20);
    const std::string message(status.message());
    // The process itself counts.
    return absl::IsResourceExhausted(status) &&
           message.find("only 9 of 20 threads can be started") != std::string::npos &&
           message.find("(RLIMIT_NPROC) is 10,") != std::string::npos &&
           message.find("ulimit -u") != std::string::npos;
  }));
}

TEST_F(ThreadLimitTest, ThreadsEnd) {
  EXPECT_TRUE(WithLimits(10, 10, [] {
    return ReserveThreads(9).ok() && ReserveThreads(9).ok() && ReserveThreads(0).ok();
  }));
}

TEST_F(ThreadLimitTest, RaisesTheSoftLimit) {
  EXPECT_TRUE(WithLimits(10, 30, [] { return ReserveThreads(20).ok(); }));
}

}  // namespace
}  // namespace cadre
