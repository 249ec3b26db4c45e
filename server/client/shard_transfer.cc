// Both transfers resume instead of starting again, because transferring a rank's slice may take
// minutes and aggregators restart in normal operation.
//
// Stage: the shard knows the progress. Every attempt sends the header first; the shard names the
// first chunk that is not stored, also after a restart. If all chunks are stored, the attempt only
// confirms durability. This makes a lost confirmation harmless.
//
// Pull: the client knows the progress, the elements that were received and checked; the next
// attempt requests the others. A version is immutable, so parts from different attempts, and even
// from different processes of the shard, fit together. If the version was removed meanwhile, the
// shard refuses and the caller chooses a newer one.
//
// Time. An absolute limit would end every transfer that the link cannot finish within it. A
// transfer therefore ends after `silence` without progress. A chunk that was received, or written
// for the first time, is progress. Written chunks may still lie in buffers: at most a few MiB,
// which must reach the shard within `silence`. At 4 MiB and 90 s this takes 375 kbit/s. A
// shard that answers that it is busy is not silent. If it is being restored, the coordinator ends
// the wait: it restores the shard, with what waiting groups hold, or parks the run. If it serves
// others, it may prefer them permanently, so this wait ends after `max_busy`. An event after the
// silence cannot prolong the transfer, so the driver's watch may end with it.
//
// The silence bounds the time for which a shard may fail without an explanation. While the
// coordinator explains it, because the aggregator has no stream, every event begins the silence
// anew, and so does the aggregator's return. The coordinator bounds this time: it ends the
// generation. Attempts go on meanwhile, because ranks may reach an aggregator that the coordinator
// does not.
//
// There are three classes of errors. Transient errors are retried with backoff. Damage and protocol
// errors are retried until the kMaxDamaged-th of them, which ends the transfer: a repeated transfer
// repairs damage in transit, not on the disk. Refusals are not retried.
#include "server/client/shard_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// The number of such errors that ends a transfer. Damage in transit is rare; repeated damage means
// a damaged disk or a bug.
constexpr int kMaxDamaged = 3;

// The first word of the message with which a shard postpones a call.
constexpr absl::string_view kBusy = "busy";

}  // namespace

ShardTransfer::ShardTransfer(Direction direction, uint64_t elements, uint32_t chunk_elements,
                             const TransferOptions& options, absl::Time now)
    : direction_(direction),
      elements_(elements),
      chunk_elements_(chunk_elements),
      silence_(options.silence),
      max_busy_(std::max(options.max_busy, options.silence)),
      backoff_(options.first_wait, options.max_wait, options.seed) {
  Advance(now);
}

void ShardTransfer::Advance(absl::Time now) {
  advanced_at_ = now;
  report_at_ = now + kReportWaits;
  silent_at_ = now + silence_;
  busy_until_ = now + max_busy_;
}

ShardTransfer::Action ShardTransfer::Handle(const Event& event, absl::Time now, bool away) {
  if (std::exchange(away_, away) || away) Advance(now);
  if (now >= silent_at_ && !std::holds_alternative<Ended>(event)) return EndSilently();
  return std::visit([&](const auto& one) { return On(one, now); }, event);
}

ShardTransfer::Action ShardTransfer::On(const Opened& opened, absl::Time /*now*/) {
  elements_ = opened.elements.value_or(elements_);
  if (direction_ == Direction::kPull) return Receive{};
  next_ = opened.next_chunk;
  // The shard has fewer chunks than before if it was replaced.
  if (next_ < std::exchange(resumed_, next_)) written_end_ = next_;
  return NextChunk();
}

ShardTransfer::Action ShardTransfer::On(const Sent& /*sent*/, absl::Time now) {
  ++next_;
  if (next_ > written_end_) {
    written_end_ = next_;
    Advance(now);
  }
  return NextChunk();
}

ShardTransfer::Action ShardTransfer::On(const Received& received, absl::Time now) {
  done_ += received.elements;
  if (received.elements > 0) Advance(now);
  return Receive{};
}

ShardTransfer::Action ShardTransfer::On(const Ended& ended, absl::Time now) {
  absl::Status status = ended.status;
  if (status.ok()) {
    const std::optional<uint64_t> transferred =
        direction_ == Direction::kStage ? ended.staged : done_;
    if (transferred == elements_) return End{};
    status =
        absl::InternalError(absl::StrCat("the shard ended the call after ", transferred.value_or(0),
                                         " of ", elements_, " elements"));
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    // A killed server or a broken connection may be reported with any of these codes.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
      break;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
      if (++damaged_ < kMaxDamaged) break;
      [[fallthrough]];
    default:
      return End{std::move(status)};
  }
  // The driver has broken the attempt off: an earlier failure says more.
  if (now >= silent_at_) return EndSilently();
  if (absl::StartsWith(status.message(), kBusy)) {
    const bool serves_others = absl::IsResourceExhausted(status);
    if (!serves_others) busy_until_ = now + max_busy_;
    silent_at_ = std::min(now + silence_, busy_until_);
  }
  last_ = std::move(status);
  return Wait{std::min(backoff_.Next(), silent_at_ - now)};
}

ShardTransfer::Action ShardTransfer::NextChunk() const {
  const uint64_t begin = uint64_t{next_} * chunk_elements_;
  if (begin >= elements_) return Confirm{};
  return Send{next_, begin, std::min(begin + chunk_elements_, elements_)};
}

ShardTransfer::Action ShardTransfer::EndSilently() const {
  const std::string why = silent_at_ < busy_until_ ? std::string("did not answer in time")
                                                   : absl::StrCat("has only served others for ",
                                                                  absl::FormatDuration(max_busy_));
  return End{absl::DeadlineExceededError(
      absl::StrCat("the aggregator shard ", why, "; last: ", last_.message()))};
}

std::optional<std::string> ShardTransfer::TakeWaitReport(absl::Time now) {
  if (now < report_at_) return std::nullopt;
  report_at_ = now + kReportWaits;
  const absl::Duration waited = absl::Trunc(now - advanced_at_, absl::Seconds(1));
  return absl::StrCat("no progress for ", absl::FormatDuration(waited),
                      "; last: ", last_.message());
}

}  // namespace cadre
