// A health check of gRPC (grpc.health.v1), as probes make it.
//
// Thread-safe.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"

namespace cadre {

// Whether the server at `address` serves this service; "": whether it serves as a whole. Errors:
// those of the call; NotFound for a service that the server does not know.
//
// The request has a string in field 1, which is shorter than 128 bytes here, and the reply an enum
// in field 1, so no message types are needed.
inline absl::StatusOr<bool> IsServing(const std::string& address, const std::string& service = "") {
  grpc::GenericStub stub(MakeChannel(address, Plane::kControl));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  grpc::CompletionQueue queue;
  std::string bytes;
  if (!service.empty()) bytes = absl::StrCat("\x0a", std::string(1, service.size()), service);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return FromGrpc(status);
  grpc::Slice answer;
  if (!reply.TrySingleSlice(&answer).ok()) return absl::InternalError("several slices");
  return std::string(reinterpret_cast<const char*>(answer.begin()), answer.size()) == "\x08\x01";
}

}  // namespace cadre
