#include "coordinator/service/streams.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/rpc/daemon.h"
#include "coordinator/service/backup.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/base/temporary_folder.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

class RunUpdatesTest : public MachineTest {
 protected:
  RunUpdatesTest() : run_(SubmitTo(1, 1, MakeSpec(1, 1, 5, 100))) {}

  RunUpdates::Entry Find(uint64_t revision, absl::Duration after) {
    return updates_.Find(cluster_.machine(), run_, revision, start_ + after);
  }

  const std::string run_;
  const absl::Time start_ = cluster_.now();
  RunUpdates updates_;
};

TEST_F(RunUpdatesTest, UpdateIsThatOfTheMachine) {
  const RunUpdates::Entry entry = Find(7, absl::ZeroDuration());
  EXPECT_EQ(entry.revision, 7U);
  EXPECT_EQ(entry.computed, start_);
  EXPECT_EQ(entry.update.SerializeAsString(),
            cluster_.machine().Update(run_, start_).SerializeAsString());
}

TEST_F(RunUpdatesTest, EqualRevisionIsNotComputedAgain) {
  Find(7, absl::ZeroDuration());
  EXPECT_EQ(Find(7, absl::Hours(1)).computed, start_);
}

TEST_F(RunUpdatesTest, AtMostTenUpdatesPerSecond) {
  Find(7, absl::ZeroDuration());
  EXPECT_EQ(Find(8, absl::Milliseconds(99)).revision, 7U);
  EXPECT_EQ(Find(9, absl::Milliseconds(100)).revision, 9U);
  EXPECT_EQ(Find(10, absl::Milliseconds(199)).revision, 9U);
}

// Watchers of an unchanged run receive no update because time has passed.
TEST_F(RunUpdatesTest, TextHasNoTimes) {
  const RunUpdates::Entry first = Find(7, absl::ZeroDuration());
  const RunUpdates::Entry later = Find(8, absl::Seconds(5));
  EXPECT_NE(later.update.time_ms(), first.update.time_ms());
  EXPECT_EQ(later.text, first.text);
  cluster_.StopRun(run_);
  EXPECT_NE(Find(9, absl::Seconds(6)).text, first.text);
}

TEST_F(RunUpdatesTest, RunsThatNobodyWatchesAreForgotten) {
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  Find(7, absl::ZeroDuration());
  const auto find_other = [&](uint64_t revision, absl::Duration after) {
    updates_.Find(cluster_.machine(), other, revision, start_ + after);
  };
  find_other(1, absl::Seconds(60));
  EXPECT_EQ(Find(7, absl::Seconds(60)).computed, start_);
  find_other(2, absl::Seconds(61));
  EXPECT_EQ(Find(7, absl::Seconds(61)).computed, start_ + absl::Seconds(61));
}

// A service with one stream that sends a file.
class OneStream final : public RequestService<v1::Runs> {
 public:
  explicit OneStream(const std::string& path) {
    const auto send = [this, path](BackupStream& stream) {
      stream_ = &stream;
      stream.Send(path);
      begun_.Notify();
    };
    Add("Backup", [this, send](grpc::CallbackServerContext* context) {
      return new BackupStream({turns_, streams_}, context, send, [this] { done_.Notify(); });
    });
  }
  void End() {
    begun_.WaitForNotification();
    stream_->End(absl::AbortedError("enough"));
  }
  bool AwaitDone() { return done_.WaitForNotificationWithTimeout(absl::Seconds(20)); }

 private:
  BackupStream* stream_ = nullptr;
  absl::Notification begun_;
  absl::Notification done_;
  RequestTurns turns_{4, 4};
  OpenStreams streams_{4, absl::Milliseconds(200)};
};

TEST(StreamWriterTest, EndedStreamOfAPeerThatDoesNotReadIsCancelled) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file").close();
  std::filesystem::resize_file(folder / "file", 64 << 20);
  OneStream service(folder / "file");
  const auto daemon = Daemon::Start({}, {&service});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const auto stub = v1::Runs::NewStub(
      grpc::CreateChannel((*daemon)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->Backup(&context, {});
  service.End();
  EXPECT_TRUE(service.AwaitDone());
  context.TryCancel();
}

}  // namespace
}  // namespace cadre::testing
