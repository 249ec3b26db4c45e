// The Rounds service: streams of ranks, turned into calls of a ShardHost.
//
// What waits for the disk runs on a pool of `disk_threads`, one piece of work per stream at a time;
// gRPC's threads only pass messages. Beyond `most_stages` and `most_pulls` streams at once a call
// gets ResourceExhausted ("busy: ...") and comes back later. So memory is bounded: a staging stream
// holds one message being written and what flow control lets the peer send ahead, a pull holds one
// chunk on its way (at most 1 MiB of values) and one checked block of the file (256 KiB).
//
//   RoundsService service({}, host, counters);
//   Daemon::Start(options, {&service});
//
// Thread-safe. Host and counters are borrowed. The server must be shut down before the service is
// destroyed.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "base/counters.h"
#include "base/grpc_channel.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/shard_host.h"
#include "server/stream_limit.h"
#include "server/work_pool.h"

namespace cadre {

// What the server must let in (DaemonOptions::receive_bytes), so that a message over
// kMaxMessageBytes can be refused by name.
inline constexpr int kRoundsReceiveBytes = 4 * kMaxMessageBytes;

struct RoundsServiceOptions {
  int disk_threads = 4;
  int most_stages = 64;
  int most_pulls = 64;
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
  // Last: its threads end before what they use.
  WorkPool pool_;
};

}  // namespace cadre
