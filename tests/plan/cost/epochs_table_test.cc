#include "plan/cost/epochs_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::EpochsTable SmallTable() {
  v1::EpochsTable table;
  table.set_model("0123456789abcdef");
  table.set_target_accuracy(0.875F);
  table.set_batch_per_worker(64);
  v1::EpochsEntry& entry = *table.add_entry();
  entry.set_workers(4);
  entry.set_epochs(3.25);
  entry.set_seed(1);
  entry.set_reached(true);
  return table;
}

class EpochsTableTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::EpochsTable> Read(const std::string& text) {
    return ReadEpochsTable(folder_.Write("epochs.textproto", text));
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "epochs.textproto";
};

TEST_F(EpochsTableTest, PrintsAndReads) {
  const std::string text = PrintEpochsTable(SmallTable(), "lenet");
  EXPECT_THAT(text, AllOf(HasSubstr("# "), HasSubstr("\"lenet\"")));
  const auto table = Read(text);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->SerializeAsString(), SmallTable().SerializeAsString());
}

TEST_F(EpochsTableTest, ReportsErrorsWithPosition) {
  EXPECT_TRUE(absl::IsNotFound(ReadEpochsTable(path_).status()));
  for (const auto& [text, field] : std::initializer_list<std::pair<const char*, const char*>>{
           {"target_accuracy: 1.5", "target_accuracy"},
           {"entry { epochs: 2 }", "entry[0].workers"},
           {"entry { workers: 2 epochs: 1 } entry { workers: 4 }", "entry[1].epochs"},
           {"entry { workers: 2 epochs: -1 }", "entry[0].epochs"},
           {"entry { workers: 2 epochs: inf }", "entry[0].epochs"},
           {"entry { workers: 2 epoch: 1 }", "epoch"}}) {
    const absl::Status status = Read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_ + ":1:"), HasSubstr(field)));
  }
}

}  // namespace
}  // namespace cadre
