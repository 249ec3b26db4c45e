// Requests are read in turns, and parsed only if they take little memory.
#include "coordinator/service/request_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/rpc/bounded_parse.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "proto/cadre/v1/control.grpc.pb.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RequestTurnsTest : public ::testing::Test {
 protected:
  class Reader final : public RequestTurns::Reader {
   public:
    Reader(std::string name, std::vector<std::string>& order)
        : name_(std::move(name)), order_(order) {}
    void OnTurn() override { order_.push_back(name_); }

   private:
    const std::string name_;
    std::vector<std::string>& order_;
  };

  std::vector<std::string> order_;
  Reader a_{"a", order_}, b_{"b", order_}, c_{"c", order_}, d_{"d", order_}, e_{"e", order_},
      f_{"f", order_};
  RequestTurns turns_{4, 1};
};

TEST_F(RequestTurnsTest, OnePeerLeavesAQuarter) {
  for (Reader* reader : {&a_, &b_, &c_, &d_}) EXPECT_TRUE(turns_.Join(*reader, "peer"));
  EXPECT_THAT(order_, ElementsAre("a", "b", "c"));
  EXPECT_FALSE(turns_.Join(f_, "peer")) << "it may not take all places of those that wait, either";
  EXPECT_TRUE(turns_.Join(e_, "other"));
  EXPECT_THAT(order_, ElementsAre("a", "b", "c", "e")) << "the last turn is for others";
  turns_.Leave(b_);
  EXPECT_THAT(order_, ElementsAre("a", "b", "c", "e", "d"));
}

TEST_F(RequestTurnsTest, TurnsFollowTheOrderOfArrival) {
  RequestTurns one(1, 4);
  for (Reader* reader : {&c_, &a_, &b_}) EXPECT_TRUE(one.Join(*reader, "peer"));
  EXPECT_THAT(order_, ElementsAre("c"));
  one.Leave(c_);
  EXPECT_THAT(order_, ElementsAre("c", "a"));
  one.Leave(a_);
  EXPECT_THAT(order_, ElementsAre("c", "a", "b"));
}

TEST_F(RequestTurnsTest, OneThatHasLeftGetsNoTurn) {
  RequestTurns one(1, 4);
  for (Reader* reader : {&a_, &b_, &c_}) EXPECT_TRUE(one.Join(*reader, "peer"));
  one.Leave(b_);
  one.Leave(d_);
  one.Leave(a_);
  EXPECT_THAT(order_, ElementsAre("a", "c"));
}

TEST_F(RequestTurnsTest, TooManyMayNotWait) {
  RequestTurns one(1, 1);
  EXPECT_TRUE(one.Join(a_, "peer"));
  EXPECT_TRUE(one.Join(b_, "peer"));
  EXPECT_FALSE(one.Join(c_, "peer"));
  one.Leave(a_);
  EXPECT_TRUE(one.Join(c_, "peer"));
}

// A service whose calls end with what they have received.
class Echo final : public RequestService<v1::Runs> {
 public:
  Echo() {
    Add("Stop", [this](grpc::CallbackServerContext* context) {
      return new UnaryCallOf<v1::StopRequest, v1::StopReply>(
          {turns_, streams_}, {.max_memory = 4096}, context,
          [this](UnaryCall& call, const v1::StopRequest& request, v1::StopReply&) {
            ++handled_;
            call.Reply(request.run().empty() ? absl::OkStatus()
                                             : absl::NotFoundError(request.run()));
          });
    });
    Add("Submit", [this](grpc::CallbackServerContext* context) {
      return new UnaryCallOf<v1::SubmitRequest, v1::SubmitReply>(
          {turns_, streams_}, {.is_large = true}, context,
          [](UnaryCall& call, const v1::SubmitRequest& request, v1::SubmitReply& reply) {
            reply.set_run(request.spec().name());
            call.Reply(absl::OkStatus());
          });
    });
  }
  int handled() const { return handled_; }

 private:
  std::atomic<int> handled_ = 0;
  RequestTurns turns_{1, 4};
  OpenStreams streams_{16, absl::Milliseconds(400)};
};

class RequestStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({}, {&service_});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    channel_ = grpc::CreateChannel(daemon_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Runs::NewStub(channel_);
  }

  grpc::Status Stop(const v1::StopRequest& request) {
    grpc::ClientContext context;
    v1::StopReply reply;
    return stub_->Stop(&context, request, &reply);
  }

  Echo service_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Runs::Stub> stub_;
};

TEST_F(RequestStreamTest, UnaryCallHasItsReplyAndItsError) {
  EXPECT_TRUE(Stop({}).ok());
  v1::StopRequest request;
  request.set_run("run-7");
  EXPECT_EQ(Stop(request).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Stop(request).error_message(), "run-7");
  for (const std::string name : {"first", "second"}) {
    grpc::ClientContext context;
    v1::SubmitRequest submit;
    submit.mutable_spec()->set_name(name);
    v1::SubmitReply reply;
    ASSERT_TRUE(stub_->Submit(&context, submit, &reply).ok()) << "the turn was returned";
    EXPECT_EQ(reply.run(), name);
  }
}

TEST_F(RequestStreamTest, RequestThatTakesTooMuchMemoryIsNotParsed) {
  v1::StopRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      999, std::string(8192, 'x'));
  const grpc::Status refused = Stop(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("4096 bytes"));
  EXPECT_EQ(service_.handled(), 0);
  EXPECT_TRUE(Stop({}).ok()) << "the turn was returned";
}

TEST_F(RequestStreamTest, RequestBeyondTheLimitOfMessagesIsRefused) {
  v1::StopRequest request;
  request.set_run(std::string(kMaxMessageBytes, 'x'));
  EXPECT_THAT(Stop(request).error_message(), HasSubstr("exceeds the limit of 12582912"));
}

// The only turn is that of a call whose caller sends nothing; it ends when the limit has passed.
TEST_F(RequestStreamTest, CallerWithoutARequestLosesItsTurn) {
  grpc::GenericStub generic(channel_);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const auto silent = generic.PrepareCall(&context, "/cadre.v1.Runs/Stop", &queue);
  silent->StartCall(nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(ok);
  EXPECT_TRUE(Stop({}).ok());
  EXPECT_EQ(service_.handled(), 1);
  grpc::Status status;
  silent->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

}  // namespace
}  // namespace cadre::testing
