#include "server/service.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/rpc/bounded_parse.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/identity.h"
#include "server/chunk_view.h"
#include "server/client/refusal.h"
#include "server/copies/copy_execution.h"

namespace cadre {
namespace {

// Orders the memory accesses of the thread that starts an operation before those of the thread that
// is notified of its end. gRPC guarantees this order; the fence shows it to thread sanitizers.
class HandoffFence {
 public:
  void Pass() { order_.fetch_add(1, std::memory_order_release); }
  void Take() const { order_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> order_ = 0;
};

// Memory of a parsed request: enough for the ranges that the ledger accepts.
constexpr int64_t kMaxRequestMemory = 16 << 20;

// Requests are parsed before their caller has proved anything.
template <typename Request>
absl::Status Parse(const grpc::ByteBuffer& bytes, Request* request) {
  const absl::Status parsed = ParseWithin(kMaxRequestMemory, bytes, request);
  if (parsed.ok()) return parsed;
  return RefusalStatus(
      absl::IsResourceExhausted(parsed) ? v1::REFUSAL_OVERSIZED : v1::REFUSAL_MALFORMED,
      std::string(parsed.message()));
}

// The common part of all calls. Exactly one read, write or pool task of a call is active
// at any time, so no lock is needed. No member is accessed after the call has ended.
template <typename Reactor>
class RoundsCall : public Reactor {
 public:
  void OnDone() override {
    fence_.Take();
    stream_.End([this] { delete this; });
  }

 protected:
  RoundsCall(ShardHost& host, WorkPool& pool, StreamSlots& slots, OpenStreams& streams,
             grpc::CallbackServerContext* context)
      : host_(host),
        pool_(pool),
        slots_(slots),
        peer_(PeerName(*context)),
        stream_(streams, context) {}

  void End(const absl::Status& status) {
    fence_.Pass();
    this->Finish(ToGrpc(status));
  }
  void EndBusy() { End(TooManyStreams()); }
  // Whether the stream may go on. If not, it is ended.
  bool IsAdmitted() {
    if (!stream_.admitted()) EndBusy();
    return stream_.admitted();
  }
  // If the caller has the right to the call: submits the work if the call gets a slot. Of several
  // calls that are attempts at the same (`attempt_of` is not empty), only the newest goes on.
  void Begin(const absl::Status& authenticated, WorkPool::Work work,
             const std::string& attempt_of = "") {
    absl::StatusOr<StreamSlots::Slot> slot = slots_.Admit(
        authenticated, peer_, {.of = attempt_of, .on_replaced = [this] { stream_.Cancel(); }});
    if (!slot.ok()) return End(slot.status());
    slot_ = *std::move(slot);
    Submit(std::move(work));
  }
  void Submit(WorkPool::Work work) {
    if (!pool_.Submit(std::move(work))) EndBusy();
  }
  // Before and after the operations that wait for the peer.
  void Await() {
    stream_.Await();
    fence_.Pass();
  }
  void Continue() {
    fence_.Take();
    stream_.Continue();
  }
  // Handles the end of a write. Returns false, and ends the call, if the caller has disconnected.
  bool TakeWritten(bool ok) {
    Continue();
    if (!ok) End(absl::CancelledError("the caller has disconnected, or did not read"));
    return ok;
  }

  ShardHost& host_;

 private:
  HandoffFence fence_;
  WorkPool& pool_;
  StreamSlots& slots_;
  const std::string peer_;
  OpenStreams::Stream stream_;
  // Declared after the stream, which a newer attempt cancels while the slot exists.
  StreamSlots::Slot slot_;
};

// Stage: header -> Resume -> chunks -> Staged. Messages are those of StageRequest and StageReply as
// bytes, so that chunks are written to the disk from where gRPC has received them.
class StageCall final
    : public RoundsCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  StageCall(ShardHost& host, WorkPool& pool, StreamSlots& slots, OpenStreams& streams,
            grpc::CallbackServerContext* context)
      : RoundsCall(host, pool, slots, streams, context) {
    if (IsAdmitted()) Read();
  }

  void OnReadDone(bool ok) override {
    Continue();
    if (ok) return TakeRequest();
    End(RefusalStatus(v1::REFUSAL_MALFORMED, absl::StrCat("the stream ended after ", taken_,
                                                          " chunks of ", staging_.grant.chunks)));
  }

  void OnWriteDone(bool ok) override {
    if (!TakeWritten(ok)) return;
    if (taken_ == staging_.grant.chunks) return Submit([this] { FinishStaging(); });
    Read();
  }

 private:
  void Read() {
    Await();
    StartRead(&request_);
  }

  void TakeRequest() {
    if (staging_.file == nullptr) return TakeFirst();
    if (ReadChunk(request_, &chunk_)) return Submit([this] { TakeChunk(); });
    EndOutOfOrder();
  }

  void TakeFirst() {
    v1::StageRequest request;
    if (const absl::Status parsed = Parse(request_, &request); !parsed.ok()) return End(parsed);
    if (!request.has_header()) return EndOutOfOrder();
    header_ = std::move(*request.mutable_header());
    // The ledger refuses the chunks of an earlier attempt.
    Begin(
        host_.Authenticate(header_), [this] { TakeHeader(); },
        ContributionKey::Of(header_).ToString());
  }

  void EndOutOfOrder() {
    End(RefusalStatus(v1::REFUSAL_MALFORMED, "expected one header, then chunks"));
  }

  void TakeHeader() {
    absl::StatusOr<Staging> staging = host_.Stage(header_);
    if (!staging.ok()) return End(staging.status());
    staging_ = *std::move(staging);
    taken_ = staging_.grant.next_chunk;
    v1::StageReply reply;
    reply.mutable_resume()->set_next_chunk(taken_);
    reply_ = Serialize(reply);
    Await();
    StartWrite(&reply_);
  }

  void TakeChunk() {
    const absl::StatusOr<bool> last = host_.Put(staging_, chunk_);
    if (!last.ok()) return End(last.status());
    ++taken_;
    if (*last) return FinishStaging();
    Read();
  }

  void FinishStaging() {
    if (const absl::Status status = host_.Finish(staging_); !status.ok()) return End(status);
    v1::StageReply reply;
    reply.mutable_staged()->set_elements(staging_.grant.elements);
    reply_ = Serialize(reply);
    Await();
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }

  Staging staging_;
  // Stored chunks, including those of earlier streams.
  uint32_t taken_ = 0;
  v1::ContributionHeader header_;
  grpc::ByteBuffer request_;
  // Refers to request_.
  ChunkView chunk_;
  grpc::ByteBuffer reply_;
};

// Pull and Read: reads and sends one chunk at a time. The next chunk is read only after gRPC has
// accepted the previous one, so a slow caller delays only itself.
class PullCall final : public RoundsCall<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  enum class Caller { kRank, kUser };

  PullCall(ShardHost& host, WorkPool& pool, Counters& counters, StreamSlots& slots,
           OpenStreams& streams, grpc::CallbackServerContext* context,
           const grpc::ByteBuffer& request, Caller caller)
      : RoundsCall(host, pool, slots, streams, context), counters_(counters) {
    if (!IsAdmitted()) return;
    absl::Status authenticated = Parse(request, &request_);
    // The certificate of a user is sufficient.
    if (authenticated.ok() && caller == Caller::kRank) authenticated = host_.Authenticate(request_);
    Begin(authenticated, [this] { Open(); });
  }

  void OnWriteDone(bool ok) override {
    if (TakeWritten(ok)) Submit([this] { WriteNext(); });
  }

 private:
  void Open() {
    absl::StatusOr<std::unique_ptr<VersionPull>> pull = host_.Pull(request_);
    if (!pull.ok()) return End(pull.status());
    pull_ = *std::move(pull);
    announces_ = request_.has_frame_from();
    WriteNext();
  }

  void WriteNext() {
    if (pull_->left() == 0 && !announces_) return End(absl::OkStatus());
    const FrameHead frame = std::exchange(announces_, false) ? pull_->frame() : FrameHead();
    reply_.set_frame_elements(frame.elements);
    reply_.set_fragment(frame.fragment);
    const int64_t requested = request_.chunk_elements();
    const int64_t chunk_elements =
        requested == 0 ? kChunkElements : std::min<int64_t>(requested, kChunkElements);
    v1::Chunk& chunk = *reply_.mutable_chunk();
    std::string& data = *chunk.mutable_data();
    data.resize(std::min(chunk_elements, pull_->left()) * sizeof(float));
    if (const auto read = pull_->Next({data.data(), data.size()}); !read.ok()) {
      return End(read.status());
    }
    chunk.set_index(index_++);
    chunk.set_crc32c(Crc32c(data));
    counters_.Add("pulled_bytes", data.size());
    Await();
    bytes_ = Serialize(reply_);
    StartWrite(&bytes_);
  }

  Counters& counters_;
  v1::PullRequest request_;
  std::unique_ptr<VersionPull> pull_;
  // The next reply has the size of the frame.
  bool announces_ = false;
  uint32_t index_ = 0;
  v1::PullReply reply_;
  grpc::ByteBuffer bytes_;
};

// Copy: the head of a file, then its blocks as they are, with their checksums.
class CopyCall final : public RoundsCall<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  CopyCall(ShardHost& host, WorkPool& pool, Counters& counters, StreamSlots& slots,
           OpenStreams& streams, grpc::CallbackServerContext* context,
           const grpc::ByteBuffer& request)
      : RoundsCall(host, pool, slots, streams, context), counters_(counters) {
    if (IsAdmitted()) Begin(Parse(request, &request_), [this] { WriteHead(); });
  }

  void OnWriteDone(bool ok) override {
    if (TakeWritten(ok)) Submit([this] { WriteBlock(); });
  }

 private:
  void WriteHead() {
    absl::StatusOr<std::unique_ptr<BlockFile>> file = host_.OpenFile(request_);
    if (!file.ok()) return End(OnRequestedFileError(host_, request_, file.status()));
    file_ = *std::move(file);
    next_ = request_.first_block();
    v1::CopyReply reply;
    reply.set_meta(file_->head().meta);
    reply.set_block_bytes(file_->head().block_bytes);
    reply.set_data_bytes(file_->head().data_bytes);
    Write(reply);
  }

  void WriteBlock() {
    if (next_ >= file_->head().blocks()) return End(absl::OkStatus());
    v1::CopyReply reply;
    v1::Chunk& chunk = *reply.mutable_chunk();
    std::string& data = *chunk.mutable_data();
    data.resize(file_->head().BytesOf(next_));
    if (const absl::Status read = file_->ReadBlock(next_, data); !read.ok()) {
      return End(OnRequestedFileError(host_, request_, read));
    }
    chunk.set_index(next_++);
    chunk.set_crc32c(Crc32c(data));
    counters_.Add("copied_bytes", data.size());
    Write(reply);
  }

  void Write(const v1::CopyReply& reply) {
    Await();
    bytes_ = Serialize(reply);
    StartWrite(&bytes_);
  }

  Counters& counters_;
  v1::CopyRequest request_;
  std::unique_ptr<BlockFile> file_;
  uint64_t next_ = 0;
  grpc::ByteBuffer bytes_;
};

}  // namespace

RoundsService::RoundsService(const RoundsServiceOptions& options, ShardHost& host,
                             Counters& counters)
    : host_(host),
      counters_(counters),
      stages_(options.max_stages),
      pulls_(options.max_pulls),
      // Every stream with a slot has at most one waiting task.
      pool_(options.disk_threads, options.max_stages + options.max_pulls),
      streams_(options.max_streams, options.max_silence) {}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RoundsService::Stage(
    grpc::CallbackServerContext* context) {
  return new StageCall(host_, pool_, stages_, streams_, context);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RoundsService::Pull(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new PullCall(host_, pool_, counters_, pulls_, streams_, context, *request,
                      PullCall::Caller::kRank);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RoundsService::Read(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new PullCall(host_, pool_, counters_, pulls_, streams_, context, *request,
                      PullCall::Caller::kUser);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RoundsService::Copy(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new CopyCall(host_, pool_, counters_, pulls_, streams_, context, *request);
}

}  // namespace cadre
