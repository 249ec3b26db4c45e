// What coordinators that share a database serve to probes, Prometheus, people and lists of
// processes: on the leader, on a standby, and without the database.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "cli/process.h"
#include "tests/base/expect.h"
#include "tests/base/rpc/health_check.h"
#include "tests/cluster/cluster.h"
#include "tests/coordinator/store/postgres_server.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(60);

// The response to a GET request, with its headers; empty if there is none.
std::string Get(const std::string& address, const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string response;
  if (connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0) {
    const std::string request =
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
    char bytes[4096];
    ssize_t count = write(fd, request.data(), request.size());
    while ((count = read(fd, bytes, sizeof(bytes))) > 0) response.append(bytes, count);
  }
  close(fd);
  return response;
}

bool Await(const std::function<bool()>& condition) {
  const absl::Time until = absl::Now() + kLong;
  while (!condition()) {
    if (absl::Now() >= until) return false;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return true;
}

// A coordinator whose store is named by an environment variable.
struct Started {
  std::unique_ptr<Process> process;
  std::string log;
  std::string address;
  std::string metrics;

  // What follows the text in its log, up to a character of `end`.
  std::string Logged(const std::string& text, const char* end) const {
    std::string found;
    EXPECT_TRUE(Await([&] {
      const std::string all = ReadFile(log).value_or("");
      const size_t begin = all.find(text);
      if (begin == std::string::npos || !absl::StrContains(all.substr(begin), "\n")) return false;
      const size_t first = begin + text.size();
      found = all.substr(first, all.find_first_of(end, first) - first);
      return true;
    })) << text
        << ": " << absl::StrJoin(LastLines(log, 20), "\n");
    return found;
  }
  bool HasMetric(const std::string& line) const {
    return absl::StrContains(Get(metrics, "/metrics"), absl::StrCat("\n", line, "\n"));
  }
};

class SharedStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!PostgresServer::IsInstalled()) GTEST_SKIP() << "PostgreSQL 15 is not installed";
    server_ = std::make_unique<PostgresServer>();
    Start(leader_, "first");
    ASSERT_TRUE(Await([&] { return leader_.HasMetric("cadre_coordinator_leads 1"); }));
    Start(standby_, "second");
    ASSERT_TRUE(Await([&] { return standby_.HasMetric("cadre_coordinator_standby 1"); }));
  }

  void Start(Started& started, const std::string& name) const {
    started.log = folder_ / (name + ".log");
    auto process = Process::Start(
        {.program = ProgramPath("cadre-coordinator"),
         .arguments = {"--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--insecure",
                       "--fromenv=store", absl::StrCat("--advertise=", name, ".example:7000"),
                       "--logtostderr"},
         .environment = {absl::StrCat("FLAGS_store=", server_->Url())},
         .log = started.log});
    ASSERT_THAT(process, IsOk());
    started.process = std::make_unique<Process>(*std::move(process));
    started.metrics = started.Logged("metrics on http://", "/");
    started.address = started.Logged("listening on ", ",");
  }
  // The output of `cadre` with these coordinators.
  static Finished RunWith(const std::vector<std::string>& arguments, const std::string& addresses) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--insecure", "--coordinator", addresses});
    const auto finished = RunProgram("cadre", all, kLong);
    EXPECT_THAT(finished, IsOk());
    return finished.value_or(Finished());
  }

  const TemporaryFolder folder_;
  std::unique_ptr<PostgresServer> server_;
  Started leader_;
  Started standby_;
};

// Probes of Kubernetes use the health checks of gRPC; load balancers /readyz.
TEST_F(SharedStoreTest, StandbyIsReadyAndNamesTheLeader) {
  for (const Started* each : {&leader_, &standby_}) {
    EXPECT_TRUE(IsServing(each->address).value());
    EXPECT_TRUE(IsServing(each->address, "readiness").value());
    EXPECT_THAT(Get(each->metrics, "/healthz"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(Get(leader_.metrics, "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(
      Get(standby_.metrics, "/readyz"),
      AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("the one at first.example:7000 leads in term")));
  EXPECT_TRUE(leader_.HasMetric("cadre_coordinator_standby 0"));
  EXPECT_TRUE(leader_.HasMetric("cadre_ready 1"));
  EXPECT_TRUE(standby_.HasMetric("cadre_coordinator_leads 0"));
  EXPECT_TRUE(standby_.HasMetric("cadre_ready 0"));
}

TEST_F(SharedStoreTest, HealthIsThatOfTheLeader) {
  const std::string both = absl::StrCat(standby_.address, ",", leader_.address);
  const Finished healthy = RunWith({"health"}, both);
  EXPECT_EQ(healthy.exit_code, 0);
  EXPECT_EQ(absl::StrJoin(healthy.lines, "\n"), "healthy");
  const Finished refused = RunWith({"health"}, standby_.address);
  EXPECT_EQ(refused.exit_code, 4) << "as without an answer";
  EXPECT_THAT(absl::StrJoin(refused.lines, "\n"), HasSubstr("first.example:7000 leads in term"));
}

// None can take the lead; a restart of the processes would not help.
TEST_F(SharedStoreTest, WithoutTheDatabaseNoneIsReady) {
  server_->Stop();
  for (const Started* each : {&leader_, &standby_}) {
    EXPECT_TRUE(Await([&] { return !IsServing(each->address, "readiness").value(); }));
    EXPECT_TRUE(IsServing(each->address).value());
    EXPECT_TRUE(each->HasMetric("cadre_coordinator_standby 0"));
    EXPECT_TRUE(each->HasMetric("cadre_coordinator_leads 0"));
    EXPECT_TRUE(Await([&] {
      return absl::StrContains(Get(each->metrics, "/readyz"), "database cadre at 127.0.0.1:");
    }));
    EXPECT_THAT(Get(each->metrics, "/readyz"), StartsWith("HTTP/1.1 503"));
  }
  server_->Start();
  for (const Started* each : {&leader_, &standby_}) {
    EXPECT_TRUE(Await([&] { return IsServing(each->address, "readiness").value(); }));
  }
  EXPECT_TRUE(Await([&] {
    return leader_.HasMetric("cadre_coordinator_leads 1") !=
           standby_.HasMetric("cadre_coordinator_leads 1");
  }));
}

TEST_F(SharedStoreTest, PasswordIsShownNowhere) {
  // A failure is reported as well.
  server_->Stop();
  EXPECT_TRUE(Await([&] { return leader_.HasMetric("cadre_coordinator_leads 0"); }));
  server_->Start();
  const std::string both = absl::StrCat(standby_.address, ",", leader_.address);
  EXPECT_TRUE(Await([&] { return RunWith({"health"}, both).exit_code == 0; }));
  std::map<std::string, std::string> shown;
  for (const Started* each : {&leader_, &standby_}) {
    const std::string name = each == &leader_ ? "leader" : "standby";
    for (const char* path : {"/metrics", "/readyz", "/healthz"}) {
      shown[name + path] = Get(each->metrics, path);
      EXPECT_THAT(shown[name + path], Not(::testing::IsEmpty()));
    }
    shown[name + " in ps"] =
        ReadFile(absl::StrCat("/proc/", each->process->pid(), "/cmdline")).value_or("");
    EXPECT_THAT(shown[name + " in ps"], HasSubstr("--fromenv=store"));
    shown[name + " log"] = ReadFile(each->log).value_or("");
    EXPECT_THAT(shown[name + " log"], HasSubstr("database cadre at"));
  }
  for (const char* verb : {"status", "health", "members", "events"}) {
    const Finished finished = RunWith({verb, "-o", "json"}, both);
    EXPECT_EQ(finished.exit_code, 0) << verb;
    shown[verb] = absl::StrJoin(finished.lines, "\n");
  }
  for (const auto& [name, text] : shown) {
    EXPECT_THAT(text, Not(HasSubstr(PostgresServer::kPassword))) << name;
  }
}

}  // namespace
}  // namespace cadre::testing
