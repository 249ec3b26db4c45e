// Tests `cadre local` from its command line to its last line, and that all its processes end.
#include <glog/logging.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(120);

// The child processes of `parent`, as /proc lists them.
std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    // "pid (name) state ppid ..."; the name may contain any character, so search for its end.
    const size_t end = text.rfind(')');
    if (end == std::string::npos) continue;
    std::istringstream rest(text.substr(end + 1));
    char state = 0;
    pid_t ppid = 0;
    rest >> state >> ppid;
    if (ppid == parent && state != 'Z') children.push_back(pid);
  }
  return children;
}

bool IsGone(pid_t pid) {
  // The test is a subreaper: orphans become its children and are reaped here.
  waitpid(pid, nullptr, WNOHANG);
  return kill(pid, 0) != 0;
}

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~LocalTest() override {
    if (HasFailure()) std::cerr << Read("err") << std::endl;
  }

  std::string Read(const std::string& name) { return ReadFile(folder_ / name).value_or(""); }

  // Starts `cadre local` on the spec; stdout and stderr go to the files out and err.
  Process Start(const v1::RunSpec& spec, const std::string& flags) {
    std::ofstream(folder_ / "run.textproto") << SpecText(spec);
    // exec replaces the shell, so signals to the process reach the program.
    auto process = Process::Start(
        {.program = "/bin/sh",
         .arguments = {
             "-c", absl::StrCat("exec ", ProgramPath("cadre"), " local ", folder_ / "run.textproto",
                                " --dir ", folder_ / "work", " ", flags, " >", folder_ / "out",
                                " 2>", folder_ / "err")}});
    CHECK(process.ok()) << process.status();
    return *std::move(process);
  }

  // Waits until the run is running; returns the processes that were started.
  std::vector<pid_t> AwaitRunning(const Process& process, size_t count) {
    const absl::Time deadline = absl::Now() + kLong;
    while (absl::Now() < deadline) {
      if (absl::StrContains(Read("err"), "  running  ")) break;
      absl::SleepFor(absl::Milliseconds(20));
    }
    const std::vector<pid_t> children = ChildrenOf(process.pid());
    EXPECT_EQ(children.size(), count);
    return children;
  }

  static void ExpectAllGone(const std::vector<pid_t>& pids, absl::Duration limit) {
    const absl::Time deadline = absl::Now() + limit;
    for (const pid_t pid : pids) {
      bool gone = IsGone(pid);
      while (!gone && absl::Now() < deadline) {
        absl::SleepFor(absl::Milliseconds(10));
        gone = IsGone(pid);
      }
      EXPECT_TRUE(gone) << "process " << pid << " is still running";
    }
  }

  const TemporaryFolder folder_;
};

constexpr char kFlags[] = "--groups 2 --ranks 2 --aggregators 2 -o json";
// A coordinator, two aggregators, four workers.
constexpr size_t kProcesses = 7;

TEST_F(LocalTest, PrintsOneJsonObject) {
  // Flags override the spec.
  v1::RunSpec spec = SmallSpec({.groups = 1, .ranks = 1, .aggregators = 1, .epochs = 4});
  Process process = Start(spec, kFlags);
  const std::vector<pid_t> children = AwaitRunning(process, kProcesses);
  const auto ending = process.WaitUntil(absl::Now() + kLong);
  ASSERT_TRUE(ending.has_value()) << "did not end";
  EXPECT_EQ(*ending, (Ending{false, 0}));
  ExpectAllGone(children, absl::ZeroDuration());

  const std::string out = Read("out");
  const std::vector<std::string> lines = absl::StrSplit(out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1u) << out;
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(lines.back(), &parsed).ok()) << out;
  const auto number = [&](const std::string& name) {
    const auto found = parsed.fields().find(name);
    EXPECT_TRUE(found != parsed.fields().end() && found->second.has_number_value()) << name;
    return found == parsed.fields().end() ? -1 : found->second.number_value();
  };
  const double parameters = SmallParameters({});
  EXPECT_GE(number("test_accuracy"), 0.9);
  EXPECT_GT(number("seconds"), 0);
  EXPECT_GT(number("samples_per_second"), 0);
  EXPECT_EQ(number("rounds_committed"), 32);
  EXPECT_EQ(number("payload_bytes_across_groups"), 32 * 2 * 2 * parameters * 4);
  EXPECT_GT(number("bytes_across_groups"), number("payload_bytes_across_groups"));
  EXPECT_EQ(number("bytes_up") + number("bytes_down"), number("bytes_across_groups"));
  EXPECT_GT(number("bytes_up"), 0.49 * number("bytes_across_groups"));
  // A round every 4 steps, and no pull of version 0; the headers are a large part for a small
  // model.
  EXPECT_NEAR(number("traffic_factor"),
              4 * number("payload_bytes_across_groups") / number("bytes_across_groups"), 1e-9);
  EXPECT_GT(number("exposed_exchange_seconds"), 0);
  EXPECT_GT(number("transfer_seconds"), 0);
  EXPECT_GT(number("evaluation_seconds"), 0);
  EXPECT_LT(number("evaluation_seconds"), number("seconds"));
  EXPECT_EQ(number("bytes_across_groups_synchronous"), 128 * 2 * parameters * 4);
  EXPECT_EQ(number("parameters"), parameters);
  EXPECT_EQ(number("groups"), 2);
  EXPECT_EQ(number("ranks"), 2);
  EXPECT_EQ(number("aggregators"), 2);
  EXPECT_NEAR(number("epochs"), 4, 1e-6);
  EXPECT_THAT(parsed.fields().at("final_digest").string_value(),
              ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_EQ(parsed.fields().at("state").string_value(), "done");
  EXPECT_THAT(parsed.fields().at("bytes_across_groups_synchronous_is").string_value(),
              HasSubstr("formula"));
  EXPECT_EQ(parsed.fields().at("group_meshes").list_value().values_size(), 2);

  // Progress is on stderr, without escape sequences, and ends with the test of the last version.
  const std::string err = Read("err");
  EXPECT_THAT(err, HasSubstr("running"));
  EXPECT_THAT(err, HasSubstr("  done  epoch 4.00/4.00  step 128/128  "));
  EXPECT_THAT(err, HasSubstr("  test 0."));
  EXPECT_THAT(err, Not(HasSubstr("\x1b")));
}

TEST_F(LocalTest, CtrlCStopsAllProcesses) {
  Process process = Start(SmallSpec({.steps = 1000000}), kFlags);
  const std::vector<pid_t> children = AwaitRunning(process, kProcesses);
  process.Signal(SIGINT);
  const auto ending = process.WaitUntil(absl::Now() + absl::Seconds(30));
  ASSERT_TRUE(ending.has_value()) << "did not end";
  EXPECT_EQ(*ending, (Ending{false, 130}));
  ExpectAllGone(children, absl::ZeroDuration());
  EXPECT_EQ(Read("out"), "");
}

TEST_F(LocalTest, ReportsTimeout) {
  Process process = Start(SmallSpec({.steps = 1000000}), absl::StrCat(kFlags, " --timeout 3s"));
  const auto ending = process.WaitUntil(absl::Now() + kLong);
  ASSERT_TRUE(ending.has_value()) << "did not end";
  EXPECT_EQ(*ending, (Ending{false, 4}));
  EXPECT_THAT(Read("err"), HasSubstr("time"));
  EXPECT_THAT(Read("err"), HasSubstr(folder_ / "work/logs"));
}

}  // namespace
}  // namespace cadre::testing
