// What is stored and reported of a run.
#include "coordinator/run/stored_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StoredRunTest : public ::testing::Test {
 protected:
  StoredRunTest() {
    cluster_.Begin(absl::UnixEpoch());
    cluster_.Restore({}, 1);
    NewEvents();
  }
  // The texts of the events since the last call.
  std::vector<std::string> NewEvents() {
    v1::EventsRequest request;
    request.set_after(seen_);
    const v1::EventsReply reply = cluster_.event_log().Read(request);
    seen_ = reply.newest();
    std::vector<std::string> texts;
    for (const v1::ClusterEvent& event : reply.events()) texts.push_back(event.text());
    return texts;
  }
  v1::RunRecord Stored() {
    for (const Action& action : cluster_.Take()) {
      if (const auto* op = std::get_if<Store::Op>(&action)) testing::ApplyTo(store_, *op);
    }
    v1::RunRecord record;
    EXPECT_TRUE(record.ParseFromString(store_[RunKey("run-1")]));
    return record;
  }

  CoordinatorOptions options_;
  Cluster cluster_{options_};
  StoredRun run_{Parse<v1::RunRecord>(R"(run: "run-1" spec { name: "test" }
                                         state: RUN_STATE_RUNNING)"),
                 cluster_};
  uint64_t seen_ = 0;
  std::map<std::string, std::string> store_;
};

TEST_F(StoredRunTest, ChangesOfTheStateAreReportedOnce) {
  run_.record().set_reason("it waits for workers");
  run_.Save();
  EXPECT_THAT(NewEvents(), ElementsAre("the run is running"))
      << "the reason of a live run changes without an event";
  run_.Save();
  EXPECT_THAT(NewEvents(), IsEmpty());
  run_.record().set_state(v1::RUN_STATE_FAILED);
  run_.record().set_reason("the data differ");
  run_.Save();
  EXPECT_THAT(NewEvents(), ElementsAre("the run is failed: the data differ"));
  run_.record().set_state(v1::RUN_STATE_DONE);
  run_.record().clear_reason();
  run_.Save();
  EXPECT_THAT(NewEvents(), ElementsAre("the run is done"));
  StoredRun restored(run_.record(), cluster_);
  restored.SetReported();
  restored.Save();
  EXPECT_THAT(NewEvents(), IsEmpty()) << "the event is from before the restart";
}

TEST_F(StoredRunTest, SpecHasARecordOfItsOwn) {
  run_.SaveSpec();
  run_.Save();
  EXPECT_FALSE(Stored().has_spec());
  EXPECT_EQ(run_.record().spec().name(), "test");
  v1::RunSpec spec;
  ASSERT_TRUE(spec.ParseFromString(store_.at(SpecKey("run-1"))));
  EXPECT_EQ(spec.name(), "test");
}

TEST_F(StoredRunTest, WarningsAreNotRepeated) {
  run_.Save();
  NewEvents();
  EXPECT_TRUE(run_.AddWarning("a disk is slow"));
  EXPECT_FALSE(run_.AddWarning("a disk is slow"));
  EXPECT_THAT(NewEvents(), ElementsAre("a disk is slow"));
  EXPECT_THAT(Stored().warnings(), ElementsAre("a disk is slow"));
  EXPECT_EQ(cluster_.meta().counters().at("warnings"), 1U);
}

TEST_F(StoredRunTest, WarningsAreLimited) {
  run_.Save();
  NewEvents();
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(run_.AddWarning(absl::StrCat("warning ", i)));
  EXPECT_EQ(NewEvents().size(), 32U);
  EXPECT_FALSE(run_.AddWarning("one more"));
  EXPECT_THAT(NewEvents(), IsEmpty());
  ASSERT_EQ(run_.record().warnings_size(), 33);
  EXPECT_EQ(run_.record().warnings(31), "warning 31");
  EXPECT_EQ(run_.record().warnings(32), "further warnings are only in the logs of the members");
}

TEST_F(StoredRunTest, RemovalIsAnnouncedAndWithdrawn) {
  run_.Save();
  NewEvents();
  EXPECT_EQ(run_.RemovalText(), "");
  run_.AnnounceRemoval(absl::FromUnixSeconds(1'000'000'000), "it ended 7 days ago");
  const std::string text =
      "the run will be deleted, with its model, at 2001-09-09 01:46:40 UTC: it ended 7 days ago";
  EXPECT_EQ(run_.RemovalText(), text);
  EXPECT_THAT(NewEvents(), ElementsAre(text));
  EXPECT_EQ(Stored().removal_ms(), 1'000'000'000'000);
  run_.WithdrawRemoval();
  EXPECT_EQ(run_.RemovalText(), "");
  EXPECT_THAT(NewEvents(), ElementsAre("the run is kept after all"));
  EXPECT_EQ(Stored().removal_ms(), 0);
  EXPECT_EQ(Stored().removal_reason(), "");
}

}  // namespace
}  // namespace cadre
