// A shard host with a real gRPC server on loopback, for tests.
#pragma once

#include <memory>
#include <string>

#include "base/counters.h"
#include "base/rpc/daemon.h"
#include "server/client/rounds_client.h"
#include "server/service.h"
#include "server/shard_host.h"
#include "tests/server/testing.h"

namespace cadre::testing {

class RoundsServer {
 public:
  // Opens the data in `folder`, which must outlive the server. A later server on the same folder
  // continues from its files.
  explicit RoundsServer(const std::string& folder, RoundsServiceOptions options = {});
  ~RoundsServer();

  ShardHost& host() { return *host_; }
  Counters& counters() { return counters_; }
  const std::string& address() const { return daemon_->address(); }
  int port() const { return daemon_->port(); }
  std::unique_ptr<v1::Rounds::Stub> Stub() const;
  std::unique_ptr<RoundsClient> Client() const;

  // Waits until a counter has this value. Returns false after ten seconds.
  bool WaitFor(const std::string& counter, uint64_t value) const;

 private:
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<RoundsService> service_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace cadre::testing
