#include "tests/coordinator/store/postgres_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "coordinator/store/postgres_connection.h"
#include "gtest/gtest.h"

namespace cadre::testing {
namespace {

constexpr char kPrograms[] = "/usr/lib/postgresql/15/bin/";
constexpr absl::Duration kCommandLimit = absl::Seconds(60);

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = bind(fd, any, size) == 0 && getsockname(fd, any, &size) == 0;
  EXPECT_TRUE(bound) << "no free port";
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace

bool PostgresServer::IsInstalled() {
  return std::filesystem::exists(absl::StrCat(kPrograms, "postgres")) ||
         std::getenv("CADRE_REQUIRE_TOOLS") != nullptr;
}

ProcessOptions PostgresServer::Command(const std::string& program,
                                       std::vector<std::string> arguments) {
  ProcessOptions command;
  command.program = absl::StrCat(kPrograms, program);
  if (geteuid() == 0) {
    const std::string first = std::exchange(command.program, "/usr/bin/setpriv");
    const std::vector<std::string> user = {"--reuid=nobody", "--regid=nogroup", "--clear-groups",
                                           "--pdeathsig=KILL", first};
    arguments.insert(arguments.begin(), user.begin(), user.end());
  }
  command.arguments = std::move(arguments);
  return command;
}

void PostgresServer::Run(const ProcessOptions& command) const {
  auto process = Process::Start(command);
  ASSERT_TRUE(process.ok()) << process.status();
  const auto ending = process->WaitUntil(absl::Now() + kCommandLimit);
  ASSERT_TRUE(ending.has_value()) << command.program;
  ASSERT_EQ(*ending, Ending()) << absl::StrJoin(LastLines(command.log, 20), "\n");
}

PostgresServer::PostgresServer() : port_(FreePort()) { Create(); }

// A server that is killed with its process would leave a segment of shared memory behind, and
// processes that still write into the folder.
PostgresServer::~PostgresServer() {
  if (process_.has_value()) Kill();
}

void PostgresServer::Own(const std::string& path) {
  if (geteuid() != 0) return;
  const passwd* const user = getpwnam("nobody");
  ASSERT_NE(user, nullptr);
  ASSERT_EQ(chown(path.c_str(), user->pw_uid, user->pw_gid), 0);
}

void PostgresServer::Create() {
  Own(folder_.path());
  const std::string password = folder_.Write("password", kPassword);
  std::filesystem::permissions(password, std::filesystem::perms::all);
  ProcessOptions init =
      Command("initdb", {"--pgdata", folder_ / "data", "--username=cadre", "--auth=scram-sha-256",
                         "--pwfile", password, "--no-locale", "--encoding=UTF8", "--no-sync"});
  init.log = folder_ / "initdb.log";
  Run(init);
  Start();
  ProcessOptions create = Command("createdb", {"--host=127.0.0.1", absl::StrCat("--port=", port_),
                                               "--username=cadre", "cadre"});
  create.environment = {absl::StrCat("PGPASSWORD=", kPassword)};
  create.log = folder_ / "createdb.log";
  Run(create);
}

void PostgresServer::StartWithTls(const KeyPair& certificate) {
  Stop();
  Own(folder_.Write("data/server.crt", certificate.certificate));
  const std::string key = folder_.Write("data/server.key", certificate.key);
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  Own(key);
  tls_ = true;
  Start();
}

void PostgresServer::Start() {
  ProcessOptions server =
      Command("postgres", {"-D", folder_ / "data", "-p", absl::StrCat(port_), "-c",
                           "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c",
                           "shared_buffers=16MB", "-c", "max_connections=40", "-c",
                           tls_ ? "ssl=on" : "ssl=off", "-c",
                           // Nothing here loses the page cache, and slow disks delay no beat.
                           "fsync=off"});
  server.log = folder_ / "postgres.log";
  auto process = Process::Start(server);
  ASSERT_TRUE(process.ok()) << process.status();
  process_.emplace(*std::move(process));
  const absl::Time until = absl::Now() + kCommandLimit;
  while (absl::Now() < until) {
    if (PostgresConnection::Connect(Url("postgres"), absl::Seconds(1)).ok()) return;
    absl::SleepFor(absl::Milliseconds(20));
  }
  FAIL() << "PostgreSQL accepts no connections: "
         << absl::StrJoin(LastLines(folder_ / "postgres.log", 20), "\n");
}

void PostgresServer::Stop() { End(SIGINT); }

void PostgresServer::Kill() { End(SIGQUIT); }

void PostgresServer::End(int signal) {
  process_->Signal(signal);
  EXPECT_TRUE(process_->WaitUntil(absl::Now() + kCommandLimit).has_value())
      << "PostgreSQL does not end: "
      << absl::StrJoin(LastLines(folder_ / "postgres.log", 20), "\n");
  process_.reset();
}

std::string PostgresServer::Url(const std::string& database, const std::string& password) const {
  return absl::StrCat("postgresql://cadre:", password, "@127.0.0.1:", port_, "/", database);
}

std::string PostgresServer::Psql(const std::string& sql) const {
  const TemporaryFolder output;
  ProcessOptions command = {.program = absl::StrCat(kPrograms, "psql"),
                            .arguments = {Url(), "--no-psqlrc", "--tuples-only", "--no-align",
                                          "--set=ON_ERROR_STOP=1", "--command", sql},
                            .log = output / "out"};
  Run(command);
  return std::string(absl::StripAsciiWhitespace(ReadFile(command.log).value_or("")));
}

}  // namespace cadre::testing
