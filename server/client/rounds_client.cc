// Both transfers resume instead of starting again, because transferring a rank's slice may take
// minutes and aggregators restart in normal operation.
//
// Stage: the shard knows the progress. Every attempt sends the header first; the Resume reply names
// the first chunk that is not stored, also after a restart of the shard, so the client keeps no
// state between attempts. If all chunks are stored, the attempt only confirms durability. This
// makes a lost Staged reply harmless.
//
// Pull: the client knows the progress. `done` counts the elements that were received and checked;
// the next attempt requests the ranges without the first `done` elements (Skip). A version is
// immutable, so parts from different attempts, and even from different processes of the shard, fit
// together. If the version was removed meanwhile, the shard refuses and the caller chooses a newer
// one.
//
// Time. An absolute limit would end every transfer that the link cannot finish within it. A call
// therefore ends after `silence` without progress, and a watching thread cancels an attempt that
// hangs. A chunk that was received, or written for the first time, is progress. Written chunks may
// still lie in buffers: at most a few MiB, which must reach the shard within `silence`. At 4 MiB
// and two minutes this takes 280 kbit/s.
//
// There are three classes of errors. Transient errors are retried with backoff until the deadline.
// Damage and protocol errors are retried until the kMaxDamaged-th of them, which ends the call: a
// repeated transfer repairs damage in transit, not on the disk. Refusals are not retried. The
// address is requested before every attempt, so that a shard that has moved is found.
#include "server/client/rounds_client.h"

#include <google/protobuf/repeated_ptr_field.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "base/crc32c.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"
#include "proto/schema_hash.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are transferred as they are in memory: little-endian");

using Ranges = google::protobuf::RepeatedPtrField<v1::Range>;

// The number of such errors that ends a call. Damage in transit is rare; repeated damage means a
// damaged disk or a bug.
constexpr int kMaxDamaged = 3;

uint64_t Elements(const Ranges& ranges) {
  uint64_t elements = 0;
  for (const v1::Range& range : ranges) elements += range.end() - range.begin();
  return elements;
}

// Ranges without their first `elements` elements.
Ranges Skip(const Ranges& ranges, uint64_t elements) {
  Ranges rest;
  for (const v1::Range& range : ranges) {
    const uint64_t skipped = std::min(elements, range.end() - range.begin());
    elements -= skipped;
    if (skipped == range.end() - range.begin()) continue;
    v1::Range* remaining = rest.Add();
    *remaining = range;
    remaining->set_begin(range.begin() + skipped);
  }
  return rest;
}

// Ranges come from the caller, so a wrong one is a bug there and not an error of the shard.
absl::Status CheckSize(const Ranges& ranges, size_t values) {
  for (const v1::Range& range : ranges) {
    if (range.begin() > range.end())
      return absl::InvalidArgumentError("a range ends before it begins");
  }
  if (Elements(ranges) == values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ranges have ", Elements(ranges),
                                                 " elements, but there are ", values, " values"));
}

void FillChunk(uint32_t index, std::span<const float> values, v1::Chunk* chunk) {
  chunk->set_index(index);
  chunk->mutable_data()->assign(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  chunk->set_crc32c(Crc32c(chunk->data()));
}

// Status of a stream that ended early.
absl::Status EndedEarly(const grpc::Status& status) {
  if (!status.ok()) return FromGrpc(status);
  return absl::InternalError("the shard ended the call before it was done");
}

using StageStream = grpc::ClientReaderWriter<v1::StageRequest, v1::StageReply>;

bool Send(StageStream& stream, const v1::StageRequest& request, Traffic* traffic) {
  if (!stream.Write(request)) return false;
  traffic->message_sent += request.ByteSizeLong();
  traffic->payload_sent += request.chunk().data().size();
  return true;
}

bool Receive(StageStream& stream, v1::StageReply* reply, Traffic* traffic) {
  if (!stream.Read(reply)) return false;
  traffic->message_received += reply->ByteSizeLong();
  return true;
}

// The chunks that a Stage call has written, over all attempts: only a chunk that is written for the
// first time is progress.
struct WrittenChunks {
  uint32_t resumed = 0;
  uint32_t end = 0;

  // The shard has the chunks before `next`; fewer than before, if it was replaced.
  void Resume(uint32_t next) {
    if (next < std::exchange(resumed, next)) end = next;
  }
  bool Add(uint32_t index) {
    if (index < end) return false;
    end = index + 1;
    return true;
  }
};

absl::Status StageOnce(v1::Rounds::Stub& stub, grpc::ClientContext& context,
                       const v1::ContributionHeader& header, std::span<const float> values,
                       const std::function<void()>& advance, WrittenChunks* written,
                       Traffic* traffic) {
  const std::unique_ptr<StageStream> stream = stub.Stage(&context);
  v1::StageRequest request;
  v1::StageReply reply;
  *request.mutable_header() = header;
  if (!Send(*stream, request, traffic) || !Receive(*stream, &reply, traffic)) {
    return EndedEarly(stream->Finish());
  }
  const uint64_t first = uint64_t{reply.resume().next_chunk()} * header.chunk_elements();
  uint32_t index = reply.resume().next_chunk();
  written->Resume(index);
  for (uint64_t at = first; at < values.size(); at += header.chunk_elements(), ++index) {
    const uint64_t size = std::min<uint64_t>(header.chunk_elements(), values.size() - at);
    FillChunk(index, values.subspan(at, size), request.mutable_chunk());
    if (!Send(*stream, request, traffic)) return EndedEarly(stream->Finish());
    if (written->Add(index)) advance();
  }
  stream->WritesDone();
  if (!Receive(*stream, &reply, traffic)) return EndedEarly(stream->Finish());
  const bool staged = reply.has_staged() && reply.staged().elements() == values.size();
  CADRE_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
  if (staged) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the shard confirmed ", reply.staged().elements(),
                                          " elements, but ", values.size(), " were sent"));
}

// Appends one chunk after the first `*done` elements of `out`.
absl::Status CopyChunk(const v1::Chunk& chunk, std::span<float> out, uint64_t* done) {
  const std::string& data = chunk.data();
  if (Crc32c(data) != chunk.crc32c()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk.index(), " was damaged in transit"));
  }
  if (data.size() % sizeof(float) != 0 || data.size() / sizeof(float) > out.size() - *done) {
    return absl::InternalError(absl::StrCat("chunk ", chunk.index(), " has a wrong size"));
  }
  std::memcpy(out.data() + *done, data.data(), data.size());
  *done += data.size() / sizeof(float);
  return absl::OkStatus();
}

absl::Status PullOnce(v1::Rounds::Stub& stub, grpc::ClientContext& context,
                      const v1::PullRequest& request, std::span<float> out,
                      const std::function<void()>& advance, uint64_t* done, Traffic* traffic) {
  traffic->message_sent += request.ByteSizeLong();
  const std::unique_ptr<grpc::ClientReader<v1::PullReply>> stream = stub.Pull(&context, request);
  v1::PullReply reply;
  while (stream->Read(&reply)) {
    traffic->message_received += reply.ByteSizeLong();
    traffic->payload_received += reply.chunk().data().size();
    if (const absl::Status taken = CopyChunk(reply.chunk(), out, done); !taken.ok()) {
      context.TryCancel();
      stream->Finish();
      return taken;
    }
    advance();
  }
  CADRE_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
  if (*done == out.size()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the shard sent ", *done, " elements, but ", out.size(), " were requested"));
}

// The first word of the message with which a shard refuses a stream because it has too many.
constexpr absl::string_view kBusy = "busy";

enum class Retry { kFinal, kRetry, kRetryFewTimes };

Retry Classify(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    // A killed server or a broken connection may be reported with any of these codes.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
      return Retry::kRetry;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
      return Retry::kRetryFewTimes;
    default:
      return Retry::kFinal;
  }
}

absl::Status TooLate(const absl::Status& last) {
  return absl::DeadlineExceededError(
      absl::StrCat("the aggregator shard did not answer in time; last: ", last.message()));
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  payload_sent += other.payload_sent;
  payload_received += other.payload_received;
  message_sent += other.message_sent;
  message_received += other.message_received;
  return *this;
}

RoundsClient::RoundsClient(AddressSource address, RoundsClientOptions options)
    : address_(std::move(address)), options_(options) {}

absl::Status RoundsClient::Stage(const v1::ContributionHeader& header,
                                 std::span<const float> values, absl::Time deadline,
                                 Traffic* traffic) {
  CADRE_RETURN_IF_ERROR(CheckSize(header.ranges(), values.size()));
  v1::ContributionHeader filled = header;
  filled.set_schema_hash(SchemaHash());
  filled.set_codec(v1::CODEC_FP32);
  if (filled.chunk_elements() == 0) filled.set_chunk_elements(kChunkElements);
  WrittenChunks written;
  return RetryUntil(deadline, [&](v1::Rounds::Stub& stub, grpc::ClientContext& context,
                                  const std::function<void()>& advance) {
    return StageOnce(stub, context, filled, values, advance, &written, traffic);
  });
}

absl::Status RoundsClient::Pull(const v1::PullRequest& request, std::span<float> out,
                                absl::Time deadline, Traffic* traffic) {
  CADRE_RETURN_IF_ERROR(CheckSize(request.ranges(), out.size()));
  if (out.empty()) return absl::OkStatus();
  v1::PullRequest filled = request;
  filled.set_schema_hash(SchemaHash());
  if (filled.chunk_elements() == 0) filled.set_chunk_elements(kChunkElements);
  uint64_t done = 0;
  return RetryUntil(deadline, [&](v1::Rounds::Stub& stub, grpc::ClientContext& context,
                                  const std::function<void()>& advance) {
    *filled.mutable_ranges() = Skip(request.ranges(), done);
    return PullOnce(stub, context, filled, out, advance, &done, traffic);
  });
}

void RoundsClient::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  changed_.NotifyAll();
  for (const Call* call : calls_) {
    if (call->context != nullptr) call->context->TryCancel();
  }
}

absl::Status RoundsClient::RetryUntil(absl::Time deadline, const Attempt& attempt) {
  Call call{.last_progress = clock_.Now()};
  std::thread watcher([&] { Watch(call); });
  const absl::Cleanup end_watch = [&] {
    {
      absl::MutexLock lock(&mutex_);
      calls_.erase(&call);
      call.ended = true;
      changed_.NotifyAll();
    }
    watcher.join();
  };
  {
    absl::MutexLock lock(&mutex_);
    calls_.insert(&call);
  }
  Backoff backoff(options_.first_wait, options_.max_wait, options_.seed);
  absl::Status last = absl::UnavailableError("not tried");
  // The caller's deadline on the steady clock.
  const absl::Time end = clock_.Now() + (deadline - absl::Now());
  for (int damaged = 0;;) {
    const absl::Status status = AttemptOnce(call, absl::Now() + (end - clock_.Now()), attempt);
    if (status.ok()) return status;
    const Retry verdict = Classify(status);
    const bool late = status.code() == absl::StatusCode::kDeadlineExceeded;
    if (!late) last = status;
    if (verdict == Retry::kRetryFewTimes && ++damaged >= kMaxDamaged) return status;
    if (verdict == Retry::kFinal && !late) return status;
    // The shard answers and serves others.
    if (absl::StartsWith(status.message(), kBusy)) Advance(call);

    const absl::Duration wait = backoff.Next();
    absl::MutexLock lock(&mutex_);
    auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_ || call.silent; };
    if (!ended() && (late || clock_.Now() + wait >= end)) return TooLate(last);
    if (!changed_.WaitFor(mutex_, wait, ended)) continue;
    return cancelled_ ? absl::CancelledError("the call was cancelled") : TooLate(last);
  }
}

// The watcher's thread: ends the call's attempt after a time without progress.
void RoundsClient::Watch(Call& call) {
  absl::MutexLock lock(&mutex_);
  auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return call.ended; };
  absl::Duration left = options_.silence;
  while (left > absl::ZeroDuration()) {
    if (changed_.WaitFor(mutex_, left, ended)) return;
    left = call.last_progress + options_.silence - clock_.Now();
  }
  call.silent = true;
  changed_.NotifyAll();
  if (call.context != nullptr) call.context->TryCancel();
}

void RoundsClient::Advance(Call& call) {
  if (options_.on_progress) options_.on_progress();
  absl::MutexLock lock(&mutex_);
  call.last_progress = clock_.Now();
}

absl::Status RoundsClient::AttemptOnce(Call& call, absl::Time deadline, const Attempt& attempt) {
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, Connect());
  // In a process without a gRPC server no other thread polls a channel that connects. If it does
  // not connect soon, the call fails, and the next attempt may find another address.
  channel->WaitForConnected(absl::ToChronoTime(absl::Now() + options_.max_wait));
  const std::unique_ptr<v1::Rounds::Stub> stub = v1::Rounds::NewStub(channel);
  grpc::ClientContext context;
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the call was cancelled");
    if (call.silent) return absl::UnavailableError("no progress");
    call.context = &context;
  }
  const absl::Cleanup forget = [&] {
    absl::MutexLock lock(&mutex_);
    call.context = nullptr;
  };
  return attempt(*stub, context, [&] { Advance(call); });
}

// Keeps the connection as long as the shard has the same address.
absl::StatusOr<std::shared_ptr<grpc::Channel>> RoundsClient::Connect() {
  const std::string address = address_();
  if (address.empty()) return absl::UnavailableError("the shard's address is not known yet");
  absl::MutexLock lock(&mutex_);
  if (channel_ == nullptr || channel_address_ != address) {
    channel_ = MakeChannel(address, Plane::kBulk);
    channel_address_ = address;
  }
  return channel_;
}

}  // namespace cadre
