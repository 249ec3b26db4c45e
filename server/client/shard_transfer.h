// The protocol of one transfer between a rank and a shard, over as many attempts as it needs: a
// Stage (upload) or a Pull (download). A pure state machine without clock, threads or network:
//
//   ShardTransfer transfer(ShardTransfer::Direction::kStage, elements, chunk_elements, options,
//                          now);
//   ShardTransfer::Action action = transfer.Handle(ShardTransfer::Ready{}, now);
//
// Its driver carries out each action and passes the event that results, until End. An attempt that
// lasts until silent_at() must be broken off by the driver. With every event the driver says
// whether the coordinator reports that the aggregator is away, that is, has no stream to the
// coordinator. The drivers are RoundsClient (gRPC) and tests/simulation/simulated_client (virtual
// time).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/backoff.h"

namespace cadre {

struct TransferOptions {
  // Waits between attempts.
  absl::Duration first_wait = absl::Milliseconds(50);
  absl::Duration max_wait = absl::Milliseconds(400);
  // Different seeds prevent ranks from retrying simultaneously.
  uint64_t seed = 0;
  // A transfer ends after this time in which no new chunk is transferred, the shard does not answer
  // that it is busy, and its aggregator is not reported as away. One that makes progress may take
  // any time.
  absl::Duration silence = absl::Seconds(90);
  // A transfer also ends after this time, or `silence` if that is longer, in which the shard only
  // answers that it serves others.
  absl::Duration max_busy = absl::Minutes(10);
};

class ShardTransfer {
 public:
  static constexpr absl::Duration kReportWaits = absl::Seconds(30);
  enum class Direction { kStage, kPull };

  // ---- Events
  // The transfer begins, or a wait is over.
  struct Ready {};
  // The attempt is open. Stage: the shard has the chunks before `next_chunk`. Pull: the number of
  // elements, if the shard has announced it.
  struct Opened {
    uint32_t next_chunk = 0;
    std::optional<uint64_t> elements = std::nullopt;
  };
  // The requested chunk was written.
  struct Sent {};
  // A chunk with a correct checksum was appended to the first done() elements.
  // Requires: there is space for it.
  struct Received {
    uint64_t elements = 0;
  };
  // The attempt is over; a status that is not OK may also come from the driver, which has broken
  // the attempt off. Stage: `staged` is the number of elements that the shard has confirmed.
  struct Ended {
    absl::Status status;
    std::optional<uint64_t> staged = std::nullopt;
  };
  using Event = std::variant<Ready, Opened, Sent, Received, Ended>;

  // ---- Actions
  // Begin an attempt. Stage: send the header. Pull: request the elements from done() on.
  struct Open {};
  // Write the chunk `index`, which has the elements [begin, end).
  struct Send {
    uint32_t index = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // All chunks are written: receive the confirmation.
  struct Confirm {};
  // Receive the next chunk, or the end of the attempt.
  struct Receive {};
  // Wait without a connection; then Ready.
  struct Wait {
    absl::Duration time;
  };
  // The transfer is over, including the current attempt.
  struct End {
    absl::Status status;
  };
  using Action = std::variant<Open, Send, Confirm, Receive, Wait, End>;

  // Requires: chunk_elements > 0.
  ShardTransfer(Direction direction, uint64_t elements, uint32_t chunk_elements,
                const TransferOptions& options, absl::Time now);

  // `away`: whether the aggregator is reported as away.
  Action Handle(const Event& event, absl::Time now, bool away = false);

  // Pull: the number of elements that were received.
  uint64_t done() const { return done_; }
  // When the attempt must be broken off unless it makes progress or the shard answers that it is
  // busy, which move this time. The transfer then ends, unless the aggregator is away.
  absl::Time silent_at() const { return silent_at_; }
  // What the transfer waits for, each time that it has made no progress for a further
  // kReportWaits; otherwise nothing.
  std::optional<std::string> TakeWaitReport(absl::Time now);

 private:
  Action On(const Ready&, absl::Time) { return Open{}; }
  Action On(const Opened& opened, absl::Time now);
  Action On(const Sent& sent, absl::Time now);
  Action On(const Received& received, absl::Time now);
  Action On(const Ended& ended, absl::Time now);
  Action NextChunk() const;
  Action EndSilently() const;
  void Advance(absl::Time now);

  const Direction direction_;
  uint64_t elements_;
  const uint32_t chunk_elements_;
  const absl::Duration silence_;
  const absl::Duration max_busy_;
  Backoff backoff_;
  // The last progress, and when the wait since then is reported next.
  absl::Time advanced_at_;
  absl::Time report_at_;
  absl::Time silent_at_;
  // How long silent_at_ moves while the shard serves others.
  absl::Time busy_until_;
  // Whether the aggregator was reported as away with the last event.
  bool away_ = false;
  // The last failed attempt.
  absl::Status last_ = absl::UnavailableError("no answer");
  int damaged_ = 0;
  uint64_t done_ = 0;

  // Stage. The next chunk to write; where the current attempt has resumed; the end of the chunks
  // that any attempt has written: only a chunk that is written for the first time is progress.
  uint32_t next_ = 0;
  uint32_t resumed_ = 0;
  uint32_t written_end_ = 0;
};

}  // namespace cadre
