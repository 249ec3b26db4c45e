#include "server/service.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"

namespace cadre {
namespace {

grpc::Status Busy() {
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                      "busy: too many concurrent streams; retry later");
}

// Orders the accesses of the thread that starts an operation and of the thread that is notified of
// its end. gRPC guarantees this order; the fence makes it visible to thread sanitizers.
class HandoffFence {
 public:
  void Pass() { order_mutex_.fetch_add(1, std::memory_order_release); }
  void Take() const { order_mutex_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> order_mutex_ = 0;
};

// Stage: header -> Resume -> chunks -> Staged. Exactly one read, write or pool task is active at
// any time, so no lock is needed. No member is accessed after the call has ended.
class StageCall final : public grpc::ServerBidiReactor<v1::StageRequest, v1::StageReply> {
 public:
  StageCall(ShardHost& host, WorkPool& pool, StreamLimit& limit)
      : host_(host), pool_(pool), permit_(limit) {
    if (permit_.granted()) {
      Read();
    } else {
      End(Busy());
    }
  }

  void OnReadDone(bool ok) override {
    fence_.Take();
    if (ok) return Submit([this] { Take(); });
    End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                     absl::StrCat("malformed: the stream ended after ", taken_, " chunks of ",
                                  staging_.grant.chunks)));
  }

  void OnWriteDone(bool ok) override {
    fence_.Take();
    if (!ok) return End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has disconnected"));
    if (taken_ == staging_.grant.chunks) return Submit([this] { FinishStaging(); });
    Read();
  }

  void OnDone() override {
    fence_.Take();
    delete this;
  }

 private:
  void Read() {
    fence_.Pass();
    StartRead(&request_);
  }
  void Write() {
    fence_.Pass();
    StartWrite(&reply_);
  }
  void End(const grpc::Status& status) {
    fence_.Pass();
    Finish(status);
  }
  void Submit(WorkPool::Work work) {
    if (!pool_.Submit(std::move(work))) End(Busy());
  }

  void Take() {
    if (request_.has_header() && staging_.file == nullptr) return TakeHeader();
    if (request_.has_chunk() && staging_.file != nullptr) return TakeChunk();
    End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                     "malformed: expected one header, then chunks"));
  }

  void TakeHeader() {
    absl::StatusOr<Staging> staging = host_.Stage(request_.header());
    if (!staging.ok()) return End(ToGrpc(staging.status()));
    staging_ = *std::move(staging);
    taken_ = staging_.grant.next_chunk;
    reply_.mutable_resume()->set_next_chunk(taken_);
    Write();
  }

  void TakeChunk() {
    const absl::StatusOr<bool> last = host_.Put(staging_, request_.chunk());
    if (!last.ok()) return End(ToGrpc(last.status()));
    ++taken_;
    if (*last) return FinishStaging();
    Read();
  }

  void FinishStaging() {
    if (const absl::Status status = host_.Finish(staging_); !status.ok()) {
      return End(ToGrpc(status));
    }
    reply_.mutable_staged()->set_elements(staging_.grant.elements);
    fence_.Pass();
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }

  ShardHost& host_;
  WorkPool& pool_;
  const StreamLimit::Permit permit_;
  HandoffFence fence_;
  Staging staging_;
  // Stored chunks, including those of earlier streams.
  uint32_t taken_ = 0;
  v1::StageRequest request_;
  v1::StageReply reply_;
};

// Pull: reads and writes one chunk at a time; the next one is read after gRPC has accepted the one
// before, so a slow caller delays only itself.
class PullCall final : public grpc::ServerWriteReactor<v1::PullReply> {
 public:
  PullCall(ShardHost& host, WorkPool& pool, Counters& counters, StreamLimit& limit,
           const v1::PullRequest* request)
      : host_(host), pool_(pool), counters_(counters), permit_(limit), request_(request) {
    if (permit_.granted()) {
      Submit([this] { Begin(); });
    } else {
      End(Busy());
    }
  }

  void OnWriteDone(bool ok) override {
    fence_.Take();
    if (!ok) return End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has disconnected"));
    Submit([this] { Next(); });
  }

  void OnDone() override {
    fence_.Take();
    delete this;
  }

 private:
  void Write() {
    fence_.Pass();
    StartWrite(&reply_);
  }
  void End(const grpc::Status& status) {
    fence_.Pass();
    Finish(status);
  }
  void Submit(WorkPool::Work work) {
    if (!pool_.Submit(std::move(work))) End(Busy());
  }

  void Begin() {
    absl::StatusOr<std::unique_ptr<VersionPull>> pull = host_.Pull(*request_);
    if (!pull.ok()) return End(ToGrpc(pull.status()));
    pull_ = *std::move(pull);
    Next();
  }

  void Next() {
    if (pull_->left() == 0) return End(grpc::Status::OK);
    v1::Chunk* chunk = reply_.mutable_chunk();
    const uint64_t wanted =
        request_->chunk_elements() == 0 ? kChunkElements : request_->chunk_elements();
    const uint64_t elements = std::min<uint64_t>({wanted, kChunkElements, pull_->left()});
    std::string* data = chunk->mutable_data();
    data->resize(elements * sizeof(float));
    const absl::StatusOr<size_t> read = pull_->Next({data->data(), data->size()});
    if (!read.ok()) {
      counters_.Add("damaged_files", absl::IsDataLoss(read.status()) ? 1 : 0);
      return End(ToGrpc(read.status()));
    }
    chunk->set_index(index_++);
    chunk->set_crc32c(Crc32c(*data));
    counters_.Add("pulled_bytes", data->size());
    Write();
  }

  ShardHost& host_;
  WorkPool& pool_;
  Counters& counters_;
  const StreamLimit::Permit permit_;
  HandoffFence fence_;
  const v1::PullRequest* const request_;
  std::unique_ptr<VersionPull> pull_;
  uint32_t index_ = 0;
  v1::PullReply reply_;
};

}  // namespace

RoundsService::RoundsService(const RoundsServiceOptions& options, ShardHost& host,
                             Counters& counters)
    : host_(host),
      counters_(counters),
      stages_(options.max_stages),
      pulls_(options.max_pulls),
      // Every stream has at most one waiting task.
      pool_(options.disk_threads, options.max_stages + options.max_pulls) {}

RoundsService::~RoundsService() {
  stages_.AwaitAllReturned();
  pulls_.AwaitAllReturned();
}

grpc::ServerBidiReactor<v1::StageRequest, v1::StageReply>* RoundsService::Stage(
    grpc::CallbackServerContext* /*context*/) {
  return new StageCall(host_, pool_, stages_);
}

grpc::ServerWriteReactor<v1::PullReply>* RoundsService::Pull(
    grpc::CallbackServerContext* /*context*/, const v1::PullRequest* request) {
  return new PullCall(host_, pool_, counters_, pulls_, request);
}

}  // namespace cadre
