// The copying of versions between aggregators over connections on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/protocol.h"
#include "server/client/copy_client.h"
#include "tests/server/service_fixture.h"

namespace cadre::testing {
namespace {

class ServiceCopiesTest : public ServiceTest {
 protected:
  // The shard has version 1.
  void SetUp() override {
    Open();
    ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
    ASSERT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  }
  v1::CopyRequest RequestOf(uint32_t version) const {
    v1::CopyRequest request;
    request.set_protocol(kProtocol);
    request.set_run(run_.run);
    request.set_lineage(run_.lineage);
    request.set_shard(run_.shard);
    request.set_version(version);
    request.set_file(v1::CopyRequest::VALUES);
    return request;
  }
  absl::Status Fetch(const v1::CopyRequest& request) {
    replies_.clear();
    return client_.Fetch(server_->address(), "", request, [this](const v1::CopyReply& reply) {
      replies_.push_back(reply);
      return absl::OkStatus();
    });
  }

  CopyClient client_{Credentials::Insecure()};
  std::vector<v1::CopyReply> replies_;
};

TEST_F(ServiceCopiesTest, FileIsSentAsItIs) {
  ASSERT_TRUE(Fetch(RequestOf(1)).ok());
  ASSERT_EQ(replies_.size(), 2u);
  EXPECT_EQ(replies_[0].data_bytes(), 60u);
  EXPECT_FALSE(replies_[0].meta().empty());
  const std::string& data = replies_[1].chunk().data();
  ASSERT_EQ(data.size(), 60u);
  EXPECT_EQ(replies_[1].chunk().crc32c(), Crc32c(data));
  EXPECT_TRUE(SameBits({reinterpret_cast<const float*>(data.data()), 15}, Values(1, 15)));
  EXPECT_EQ(server_->counters().Get("copied_bytes"), 60u);
}

TEST_F(ServiceCopiesTest, TransferContinuesAfterTheLastBlock) {
  v1::CopyRequest request = RequestOf(1);
  request.set_first_block(1);
  ASSERT_TRUE(Fetch(request).ok());
  EXPECT_EQ(replies_.size(), 1u) << "all blocks are there";
}

TEST_F(ServiceCopiesTest, MissingFilesAreReported) {
  EXPECT_TRUE(absl::IsNotFound(Fetch(RequestOf(2))));
  v1::CopyRequest request = RequestOf(1);
  request.set_shard(3);
  EXPECT_TRUE(absl::IsNotFound(Fetch(request)));
  request = RequestOf(1);
  request.set_protocol(kProtocol + 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Fetch(request)));
}

TEST_F(ServiceCopiesTest, CancelledClientFails) {
  EXPECT_TRUE(absl::IsUnavailable(client_.Fetch(
      "127.0.0.1:1", "", RequestOf(1), [](const v1::CopyReply&) { return absl::OkStatus(); })));
  client_.Cancel();
  EXPECT_TRUE(absl::IsCancelled(Fetch(RequestOf(1))));
}

}  // namespace
}  // namespace cadre::testing
