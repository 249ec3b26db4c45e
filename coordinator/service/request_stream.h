// Calls with one request: those of unary methods, and those that are answered with a stream.
//
// gRPC reads and parses the request of such a method before its service learns of the call, so a
// caller with many calls takes memory without limit, and the limits of a server do not depend on
// the method. Here these methods are served as streams in both directions, which are the same on
// the wire: a request is read when the call has a turn, of which there are few, and parsed if the
// message cannot become large (base/rpc/bounded_parse.h).
//
// Thread-safe.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/stream_slots.h"
#include "coordinator/events/events.h"
#include "coordinator/service/stream_writer.h"

namespace cadre {

// The turns in which requests are read. Those that wait take turns in the order of arrival, except
// that one peer may have three quarters of them.
class RequestTurns {
 public:
  class Reader {
   public:
    // It has a turn until Leave. Must not call the RequestTurns.
    virtual void OnTurn() = 0;

   protected:
    ~Reader() = default;
  };

  RequestTurns(int turns, int max_waiting) : slots_(turns), places_(max_waiting) {}

  // Calls reader.OnTurn once, before it returns or later. `reader` is borrowed until Leave. False
  // if too many wait; one peer may be three quarters of those, too.
  bool Join(Reader& reader, const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the reader's turn, or its wait. OnTurn is not called afterwards.
  void Leave(Reader& reader) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    Reader* reader = nullptr;
    std::string peer;
    StreamSlots::Slot place;
  };
  bool Give(Reader& reader, const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveTurns() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StreamSlots slots_;
  StreamSlots places_;
  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<Reader*, StreamSlots::Slot> turns_ ABSL_GUARDED_BY(mutex_);
};

// A call until its request is parsed. Deletes itself, as StreamWriter does.
class RequestStream : public StreamWriter, private RequestTurns::Reader {
 public:
  struct Limits {
    // The parsed request takes at most this much.
    int64_t max_memory = 16 << 10;
    // The request may be large: its caller has any time to send it, and the call has its turn until
    // the reply, because its event has a copy.
    bool is_large = false;
  };
  // What the streams of a service share. Borrowed.
  struct Shared {
    RequestTurns& turns;
    OpenStreams& streams;
  };

  // Reads the request in a turn of the caller. Must be called once.
  void Begin();
  // PeerName of the caller.
  const std::string& peer() const { return peer_; }

  void OnReadDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("cancelled by the caller")); }
  void OnDone() override;

 protected:
  RequestStream(const Shared& shared, const Limits& limits, grpc::CallbackServerContext* context,
                std::function<void()> on_done);

  // Where the request is parsed to.
  virtual google::protobuf::Message& request() = 0;
  // The request is parsed. The call exists until this function returns, also if it ends meanwhile.
  virtual void OnRequest() = 0;

  void EndTurn() ABSL_LOCKS_EXCLUDED(mutex_) { turns_.Leave(*this); }

 private:
  void OnTurn() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Parse();

  RequestTurns& turns_;
  const Limits limits_;
  const std::string peer_;
  // Written by gRPC between StartRead and OnReadDone.
  grpc::ByteBuffer incoming_;
};

// A call of a unary method.
class UnaryCall : public RequestStream {
 public:
  // The call will be ended by Reply only, and a cancellation is passed to `on_cancel`. False: it
  // has ended. Requires: OnRequest is running.
  bool Keep(std::function<void()> on_cancel) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the call, with the reply if the status is OK. A caller that does not read its reply is
  // cancelled.
  void Reply(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  UnaryCall(const Shared& shared, const Limits& limits, grpc::CallbackServerContext* context)
      : RequestStream(shared, limits, context, [] {}) {}

  virtual const google::protobuf::Message& reply() const = 0;

 private:
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

template <typename Request, typename ReplyMessage>
class UnaryCallOf final : public UnaryCall {
 public:
  // `handle` may end the call, or keep it.
  using Handle = std::function<void(UnaryCall& call, const Request& request, ReplyMessage& reply)>;
  UnaryCallOf(const Shared& shared, const Limits& limits, grpc::CallbackServerContext* context,
              Handle handle)
      : UnaryCall(shared, limits, context), handle_(std::move(handle)) {}

 private:
  google::protobuf::Message& request() override { return request_; }
  const google::protobuf::Message& reply() const override { return reply_; }
  void OnRequest() override { handle_(*this, request_, reply_); }

  const Handle handle_;
  Request request_;
  ReplyMessage reply_;
};

// The implementation of a service of the protocol, such as v1::Runs. All of its methods must be
// added.
template <typename Declared>
class RequestService : public Declared::Service {
 protected:
  // `make` returns the stream of a call, which begins afterwards.
  void Add(absl::string_view method,
           std::function<RequestStream*(grpc::CallbackServerContext*)> make) {
    const auto* const declared = google::protobuf::DescriptorPool::generated_pool()
                                     ->FindServiceByName(Declared::service_full_name())
                                     ->FindMethodByName(std::string(method));
    const auto begin = [make = std::move(make)](grpc::CallbackServerContext* context) {
      RequestStream* const stream = make(context);
      stream->Begin();
      return stream;
    };
    // gRPC has the methods in the order of their declarations. It reads no request of a streamed
    // method by itself.
    this->MarkMethodStreamed(declared->index(), nullptr);
    this->MarkMethodRawCallback(
        declared->index(),
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(begin));
  }
};

}  // namespace cadre
