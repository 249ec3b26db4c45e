// The Rounds service: streams of ranks, and of other aggregators, converted to calls of a
// ShardHost.
//
// Disk I/O runs on a pool of `disk_threads`, at most one task per stream at a time; gRPC's threads
// only pass messages. A call beyond `max_stages` or `max_pulls` concurrent streams, or beyond three
// quarters of them for one peer, is refused with ResourceExhausted ("busy: ..."), and the client
// retries it later. A stream counts once its first message has proved that its caller is a rank;
// before that, only the number of all streams and the share of each peer are limited. A new attempt
// at a contribution ends the stream of the one before and takes its slot. A stream whose peer
// neither sends nor reads a message for `max_silence` is cancelled. Memory is therefore
// bounded: a staging stream holds the message that is being written and those that flow control
// admits ahead of it; a pull holds one chunk in transit (at most 1 MiB of values) and one checked
// block of the file (256 KiB).
//
//   RoundsService service({}, host, counters);
//   Daemon::Start(options, {&service});
//
// Thread-safe. Host and counters are borrowed. The gRPC server must be shut down before the service
// is destroyed.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/counters.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/stream_limits.h"
#include "base/stream_slots.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/shard_host.h"

namespace cadre {

struct RoundsServiceOptions {
  int disk_threads = 4;
  int max_stages = 64;
  int max_pulls = 64;
  // Streams of both kinds, with those that have proved nothing yet.
  int max_streams = 1024;
  absl::Duration max_silence = absl::Seconds(30);
};

// A fixed number of threads for tasks that wait for the disk, so that gRPC's threads do not have to
// wait. Thread-safe. The destructor runs all submitted tasks, then ends the threads.
class WorkPool {
 public:
  using Work = std::function<void()>;

  // Requires: threads > 0, capacity > 0. At most `capacity` tasks wait.
  WorkPool(int threads, size_t capacity) : queue_(capacity) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        while (std::optional<Work> work = queue_.Pop()) (*work)();
      });
    }
  }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  ~WorkPool() {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  // Does not block. Returns false, and drops the task, if the queue is full.
  bool Submit(Work work) { return queue_.TryPush(std::move(work)); }

 private:
  BoundedQueue<Work> queue_;
  std::vector<std::thread> threads_;
};

class RoundsService final
    : public v1::Rounds::WithRawCallbackMethod_Stage<
          v1::Rounds::WithRawCallbackMethod_Pull<v1::Rounds::WithRawCallbackMethod_Read<
              v1::Rounds::WithRawCallbackMethod_Copy<v1::Rounds::Service>>>> {
 public:
  RoundsService(const RoundsServiceOptions& options, ShardHost& host, Counters& counters);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Stage(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Pull(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Read(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Copy(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override;

 private:
  ShardHost& host_;
  Counters& counters_;
  StreamSlots stages_;
  StreamSlots pulls_;
  WorkPool pool_;
  // Declared last: all streams end before the objects that they use.
  OpenStreams streams_;
};

}  // namespace cadre
