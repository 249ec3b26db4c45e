// The Rounds service on loopback, and a Stage stream that the test controls.
#pragma once

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "base/rpc/grpc_status.h"
#include "server/service.h"
#include "tests/server/rounds_server.h"
#include "tests/server/testing.h"

namespace cadre::testing {

inline absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// A Stage stream that the test controls message by message.
struct RawStage {
  explicit RawStage(const RoundsServer& server) : stub(server.Stub()) {
    context.set_deadline(absl::ToChronoTime(Soon()));
    stream = stub->Stage(&context);
  }
  bool Send(const v1::ContributionHeader& header) {
    v1::StageRequest request;
    *request.mutable_header() = header;
    return stream->Write(request);
  }
  bool Send(const v1::Chunk& chunk) {
    v1::StageRequest request;
    *request.mutable_chunk() = chunk;
    return stream->Write(request);
  }
  // The server's Resume; fails the test if there is none.
  uint32_t Resume() {
    v1::StageReply reply;
    EXPECT_TRUE(stream->Read(&reply) && reply.has_resume());
    return reply.resume().next_chunk();
  }
  // Half-closes the stream; returns its final status.
  absl::Status Finish() {
    stream->WritesDone();
    v1::StageReply reply;
    while (stream->Read(&reply)) {
    }
    return FromGrpc(stream->Finish());
  }

  std::unique_ptr<v1::Rounds::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StageRequest, v1::StageReply>> stream;
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() { Start({}); }

  void Start(RoundsServiceOptions options) {
    server_.reset();
    server_ = std::make_unique<RoundsServer>(folder_.path(), options);
  }

  void Open() {
    const auto opened = server_->host().OpenRun(run_.Open());
    ASSERT_TRUE(opened.ok()) << opened.status();
  }

  absl::Status Stage(const Place& place, const std::vector<float>& values, uint32_t chunk = 4,
                     Traffic* traffic = nullptr) {
    Traffic unused;
    return server_->Client()->Stage(Header(run_, place, 0, values.size(), chunk), values,
                                    traffic == nullptr ? &unused : traffic);
  }

  v1::Applied Apply(const v1::Apply& apply) {
    const auto applied = server_->host().Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return *applied;
  }

  // A run of 16 Mi parameters (64 MiB).
  void OpenLarge() {
    run_.in = 4095;
    run_.out = 4096;
    Open();
  }

  TemporaryFolder folder_;
  SmallRun run_;
  std::unique_ptr<RoundsServer> server_;
};

}  // namespace cadre::testing
