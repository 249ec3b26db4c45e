// The Rounds service: streams of ranks, converted to calls of a ShardHost.
//
// Disk I/O runs on a pool of `disk_threads`, at most one task per stream at a time; gRPC's threads
// only pass messages. A call beyond `max_stages` or `max_pulls` concurrent streams is refused with
// ResourceExhausted ("busy: ..."), and the client retries it later. Memory is therefore bounded: a
// staging stream holds the message that is being written and those that flow control admits ahead
// of it; a pull holds one chunk in transit (at most 1 MiB of values) and one checked block of the
// file (256 KiB).
//
//   RoundsService service({}, host, counters);
//   Daemon::Start(options, {&service});
//
// Thread-safe. Host and counters are borrowed. The gRPC server must be shut down before the service
// is destroyed.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "base/counters.h"
#include "base/rpc/grpc_channel.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/shard_host.h"
#include "server/stream_limit.h"
#include "server/work_pool.h"

namespace cadre {

// Value for DaemonOptions::receive_bytes, so that a message over kMaxMessageBytes can be refused by
// name.
inline constexpr int kRoundsReceiveBytes = 4 * kMaxMessageBytes;

struct RoundsServiceOptions {
  int disk_threads = 4;
  int max_stages = 64;
  int max_pulls = 64;
};

class RoundsService final : public v1::Rounds::CallbackService {
 public:
  RoundsService(const RoundsServiceOptions& options, ShardHost& host, Counters& counters);
  ~RoundsService() override;

  grpc::ServerBidiReactor<v1::StageRequest, v1::StageReply>* Stage(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::PullReply>* Pull(grpc::CallbackServerContext* context,
                                                const v1::PullRequest* request) override;

 private:
  ShardHost& host_;
  Counters& counters_;
  StreamLimit stages_;
  StreamLimit pulls_;
  // Declared last: its threads end before the objects that they use.
  WorkPool pool_;
};

}  // namespace cadre
