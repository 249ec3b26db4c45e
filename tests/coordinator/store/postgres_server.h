// A PostgreSQL server of its own for a test, in a temporary folder, on a free loopback port.
//
// initdb refuses to run as root; the server then runs as nobody. Thread-compatible.
#pragma once

#include <optional>
#include <string>

#include "base/certificate.h"
#include "cli/process.h"
#include "tests/base/temporary_folder.h"

namespace cadre::testing {

class PostgresServer {
 public:
  // Whether PostgreSQL 15 is installed where Debian installs it. With CADRE_REQUIRE_TOOLS, tests
  // fail without it instead of being skipped.
  static bool IsInstalled();

  // Starts a server that has the empty database "cadre" of the user "cadre", with a password. Fails
  // the test on errors.
  PostgresServer();
  ~PostgresServer();

  // The server's processes end without notice, as with its host; what was committed is kept.
  void Kill();
  // Ends it in the orderly way: connections end immediately.
  void Stop();
  // Starts it again on the same port, and waits until it accepts connections.
  void Start();
  // Ends it, and starts it with this certificate; connections may then use TLS.
  void StartWithTls(const KeyPair& certificate);

  // The address of a database, with the user's password or with another one.
  std::string Url(const std::string& database = "cadre",
                  const std::string& password = kPassword) const;
  // Runs statements with psql; returns its output without a header, columns separated by "|".
  std::string Psql(const std::string& sql) const;

  static constexpr char kPassword[] = "very-secret";

 private:
  // A command that runs a program of PostgreSQL as the server's user.
  static ProcessOptions Command(const std::string& program, std::vector<std::string> arguments);
  void Run(const ProcessOptions& command) const;
  // Gives a file or folder to the server's user.
  static void Own(const std::string& path);
  void Create();
  // Sends the signal and waits for the end.
  void End(int signal);

  const TemporaryFolder folder_;
  int port_ = 0;
  bool tls_ = false;
  std::optional<Process> process_;
};

}  // namespace cadre::testing
