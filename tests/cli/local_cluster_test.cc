// Tests which processes LocalCluster starts, restarts and ends. Shell scripts replace the three
// programs, so nothing is trained.
#include "cli/local_cluster.h"

#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kStartLimit = absl::Seconds(20);

// A script that writes its arguments and process id to its log, writes its port file and ends on
// SIGTERM.
constexpr char kGood[] = R"(#!/bin/sh
trap 'echo ended; exit 0' TERM
echo "pid $$"
echo "arguments $*"
echo "host $NCCL_HOSTID"
for argument in "$@"; do
  case $argument in
    --port-file=*) file=${argument#*=}; echo 4242 >"$file.new"; mv "$file.new" "$file" ;;
  esac
done
while :; do sleep 0.02; done
)";
constexpr char kStubborn[] = R"(#!/bin/sh
trap '' TERM
echo "pid $$"
while :; do sleep 0.02; done
)";

class LocalClusterTest : public FolderTest {
 protected:
  LocalClusterTest() {
    for (const char* program : {"cadre-coordinator", "cadre-aggregator", "cadre-worker"}) {
      Install(program, kGood);
    }
  }
  void Install(const std::string& program, const std::string& script) {
    const std::string path = absl::StrCat(folder_, "/", program);
    std::ofstream(path) << script;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  LocalClusterOptions Options() {
    LocalClusterOptions options;
    options.programs = folder_;
    options.folder = folder_ + "/run";
    options.workers = 2;
    options.aggregators = 1;
    options.note = [this](absl::string_view line) { notes_.emplace_back(line); };
    return options;
  }

  std::vector<std::string> Log(const std::string& name) {
    return LastLines(absl::StrCat(folder_, "/run/logs/", name, ".log"), 1000);
  }

  // Lines of a member's log that begin with `word`, once there are `count` of them.
  std::vector<std::string> Await(const std::string& name, const std::string& word, int count) {
    const absl::Time deadline = absl::Now() + kStartLimit;
    while (true) {
      std::vector<std::string> found;
      for (const std::string& line : Log(name)) {
        if (absl::StartsWith(line, word)) found.push_back(line);
      }
      if (std::ssize(found) >= count || absl::Now() > deadline) return found;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  pid_t LastPid(const std::string& name, int starts) {
    const std::vector<std::string> lines = Await(name, "pid ", starts);
    return std::ssize(lines) < starts ? -1 : std::stoi(lines.back().substr(4));
  }

  // Supervises the cluster until it fails, or until a member was started `starts` times.
  absl::Status Supervise(LocalCluster& cluster, const std::string& name = "", int starts = 0) {
    const absl::Time deadline = absl::Now() + kStartLimit;
    while (absl::Now() < deadline) {
      if (absl::Status status = cluster.Supervise(); !status.ok()) return status;
      int seen = 0;
      for (const std::string& line : Log(name)) seen += absl::StartsWith(line, "pid ");
      if (starts > 0 && seen >= starts) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return absl::DeadlineExceededError("no error, and no restart");
  }

  std::vector<std::string> notes_;
};

TEST_F(LocalClusterTest, PassesRoots) {
  LocalClusterOptions options = Options();
  options.data_roots = {"/a", "/b"};
  options.checkpoint_roots = {"/c"};
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT(Await("worker-1", "arguments", 1),
              ElementsAre(HasSubstr("--data-root=/a --data-root=/b --checkpoint-root=/c")));
  EXPECT_THAT(Await("aggregator-0", "arguments", 1),
              ElementsAre(HasSubstr("--checkpoint-root=/c")));
}

TEST_F(LocalClusterTest, BindsWorkersToNumaNodes) {
  LocalClusterOptions options = Options();
  options.numa_nodes = {{.number = 0, .cpus = {0, 1}}, {.number = 3, .cpus = {2, 3}}};
  options.threads = 2;
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT(Await("worker-0", "arguments", 1), ElementsAre(HasSubstr("--numa-node=0 ")));
  EXPECT_THAT(Await("worker-1", "arguments", 1), ElementsAre(HasSubstr("--numa-node=3 ")));
}

TEST_F(LocalClusterTest, StartsAndStopsInOrder) {
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ((*cluster)->coordinator(), "127.0.0.1:4242");
  std::vector<pid_t> pids;
  for (const char* name : {"coordinator", "aggregator-0", "worker-0", "worker-1"}) {
    pids.push_back(LastPid(name, 1));
    ASSERT_GT(pids.back(), 0) << name;
    EXPECT_EQ(kill(pids.back(), 0), 0);
  }
  EXPECT_THAT(Await("worker-1", "arguments", 1),
              ElementsAre(AllOf(HasSubstr("--coordinator=127.0.0.1:4242"),
                                HasSubstr("--name=worker-1"), HasSubstr("--threads=1"))));
  EXPECT_THAT(Await("worker-1", "arguments", 1),
              Not(Contains(AnyOf(HasSubstr("--device"), HasSubstr("--numa-node")))));
  EXPECT_THAT(Await("aggregator-0", "arguments", 1),
              ElementsAre(AllOf(HasSubstr("--name=aggregator-0"), HasSubstr("--data-dir="))));
  EXPECT_TRUE((*cluster)->Supervise().ok());
  (*cluster)->Shutdown();
  for (const pid_t pid : pids) EXPECT_EQ(kill(pid, 0), -1);
  // The processes ended by themselves; they were not killed.
  EXPECT_THAT(Log("worker-0"), Contains("ended"));
  EXPECT_THAT(Log("coordinator"), Contains("ended"));
  EXPECT_THAT(notes_, SizeIs(0));
  EXPECT_TRUE((*cluster)->Supervise().ok())
      << "processes that were shut down are not started again";
}

TEST_F(LocalClusterTest, EachProcessHasItsCertificate) {
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const std::string name : {"coordinator", "aggregator-0", "worker-0", "worker-1"}) {
    const std::string folder = absl::StrCat(folder_, "/run/tls/", name);
    EXPECT_THAT(Await(name, "arguments", 1), Contains(HasSubstr("--tls=" + folder)));
    const auto loaded = Credentials::FromFolder(folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->identity().name, name);
  }
  EXPECT_EQ((*cluster)->credentials().identity().role, Role::kOperator);
}

TEST_F(LocalClusterTest, InsecureClusterHasNoCertificates) {
  LocalClusterOptions options = Options();
  options.insecure = true;
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const std::string name : {"coordinator", "aggregator-0", "worker-0"}) {
    EXPECT_THAT(Await(name, "arguments", 1),
                ElementsAre(AllOf(HasSubstr("--insecure"), Not(HasSubstr("--tls")))));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/run/tls"));
}

TEST_F(LocalClusterTest, RestartsKilledProcesses) {
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int time = 1; time <= 2; ++time) {
    for (const char* name : {"worker-0", "aggregator-0", "coordinator"}) {
      const pid_t pid = LastPid(name, time);
      ASSERT_GT(pid, 0) << name;
      ASSERT_EQ(kill(pid, SIGKILL), 0);
      const absl::Status status = Supervise(**cluster, name, time + 1);
      ASSERT_TRUE(status.ok()) << name << ": " << status;
      EXPECT_NE(LastPid(name, time + 1), pid);
    }
  }
  EXPECT_THAT(notes_, SizeIs(6));
  EXPECT_THAT(notes_[0], AllOf(HasSubstr("worker-0"), HasSubstr("signal 9")));
  // The restarted coordinator uses the same port and store.
  const std::vector<std::string> starts = Await("coordinator", "arguments", 3);
  ASSERT_THAT(starts, SizeIs(3));
  EXPECT_THAT(starts[0], HasSubstr("--listen=127.0.0.1:0 "));
  EXPECT_THAT(starts[2], HasSubstr("--listen=127.0.0.1:4242 "));
  EXPECT_THAT(starts[2], HasSubstr(absl::StrCat("--store=", folder_, "/run/store.db")));
}

TEST_F(LocalClusterTest, LimitsRestarts) {
  Install("cadre-worker", "#!/bin/sh\necho no luck\nexit 1\n");
  LocalClusterOptions options = Options();
  options.max_restarts = 3;
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const absl::Status status = Supervise(**cluster);
  ASSERT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("exit code 1"), HasSubstr("after 3 restarts"), HasSubstr("no luck"),
                    HasSubstr("/logs/worker-")));
}

TEST_F(LocalClusterTest, WorkersOnOneGpuHaveHostIds) {
  LocalClusterOptions options = Options();
  options.device = "cuda:1";
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (const std::string name : {"worker-0", "worker-1"}) {
    EXPECT_THAT(Await(name, "arguments", 1), Contains(HasSubstr("--device=cuda:1")));
    EXPECT_THAT(Await(name, "host", 1), ElementsAre("host " + name));
  }
  (*cluster)->Shutdown();
}

TEST_F(LocalClusterTest, PermanentFailuresAreNotRestarted) {
  Install("cadre-worker", "#!/bin/sh\necho refused for good\nexit 64\n");
  auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const absl::Status status = Supervise(**cluster);
  ASSERT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("refused for good"));
  EXPECT_THAT(notes_, SizeIs(0));
}

TEST_F(LocalClusterTest, NoRestart) {
  LocalClusterOptions options = Options();
  options.restart = false;
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_EQ(kill(LastPid("aggregator-0", 1), SIGKILL), 0);
  EXPECT_TRUE(absl::IsAborted(Supervise(**cluster)));
}

TEST_F(LocalClusterTest, ReportsWhyTheCoordinatorFailed) {
  Install("cadre-coordinator", "#!/bin/sh\necho the disk is full >&2\nexit 1\n");
  const auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(absl::IsUnavailable(cluster.status())) << cluster.status();
  EXPECT_THAT(std::string(cluster.status().message()),
              AllOf(HasSubstr("exit code 1"), HasSubstr("the disk is full")));
}

TEST_F(LocalClusterTest, MissingProgramStopsTheOthers) {
  std::filesystem::remove(folder_ + "/cadre-worker");
  const auto cluster = LocalCluster::Start(Options());
  ASSERT_TRUE(absl::IsNotFound(cluster.status())) << cluster.status();
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("cadre-worker"));
  // A script may have ended before it has written its process id.
  for (const std::string& line : Log("coordinator")) {
    if (!absl::StartsWith(line, "pid ")) continue;
    EXPECT_EQ(kill(std::stoi(line.substr(4)), 0), -1);
  }
}

TEST_F(LocalClusterTest, SecondInterruptKills) {
  Install("cadre-worker", kStubborn);
  LocalClusterOptions options = Options();
  options.hurry = [] { return true; };
  auto cluster = LocalCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const pid_t pid = LastPid("worker-0", 1);
  ASSERT_GT(pid, 0);
  LastPid("worker-1", 1);
  const absl::Time before = absl::Now();
  (*cluster)->Shutdown();
  EXPECT_LT(absl::Now() - before, absl::Seconds(5));
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_THAT(notes_, Contains(HasSubstr("worker-0 did not end after SIGTERM")));
}

}  // namespace
}  // namespace cadre
